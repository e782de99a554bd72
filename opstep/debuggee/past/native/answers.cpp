// What Python asks of the past: events, slots of a call, the content of a node at a time.
#include "answers.h"

#include <algorithm>

#include "hooks.h"
#include "log.h"

static PyObject* handle_type;  // a subclass of int, for nodes

struct Found {
  Time time;
  uint64_t frame;
  uint32_t line;
  int lasti;
  Code* code;
};

static std::vector<Found> by_time;  // all events by time, while the program is stopped

void forget_index() {
  if (!by_time.empty()) std::vector<Found>().swap(by_time);
}

void set_handle_type(PyObject* type) { handle_type = Py_NewRef(type); }

static void make_index() {
  if (!by_time.empty()) return;
  for (Chunk* c : chunks)
    for (auto& e : c->events) {
      auto frame = frames.find(e.frame);
      if (e.line && frame != frames.end())
        by_time.push_back(Found{e.time, e.frame, e.line, e.lasti, frame->second.code});
    }
  for (Code* c : codes)
    for (auto& e : c->ring)
      if (e.time && frames.count(e.frame))
        by_time.push_back(Found{e.time, e.frame, e.line, e.lasti, c});
  std::sort(by_time.begin(), by_time.end(), [](auto& a, auto& b) { return a.time < b.time; });
}

static PyObject* to_python(Ref r) {
  if (!r) Py_RETURN_NONE;
  if (!r.is_node()) return Py_NewRef(r.atom());
  return PyObject_CallFunction(handle_type, "K", (unsigned long long)(uintptr_t)r.node());
}

static long position_of(Code* code) {
  return std::find(codes.begin(), codes.end(), code) - codes.begin();
}

// find(position, backwards, frames or None, [lines or None, by code] or None, inclusive)
// -> (time, frame, line, lasti, code's number) or None
PyObject* find_event(PyObject*, PyObject* args) {
  unsigned long long position;
  int backwards;
  PyObject *wanted, *lines;
  if (!PyArg_ParseTuple(args, "KpOO", &position, &backwards, &wanted, &lines)) return nullptr;
  make_index();
  auto at = std::lower_bound(by_time.begin(), by_time.end(), position,
                             [](const Found& e, Time t) { return e.time < t; });
  long i = at - by_time.begin(), n = by_time.size();
  if (backwards) i--;
  else if (i < n && by_time[i].time == position) i++;
  std::unordered_map<Code*, PyObject*> sets;
  for (size_t k = 0; lines != Py_None && k < codes.size() && (long)k < PyList_GET_SIZE(lines); k++)
    if (PyList_GET_ITEM(lines, k) != Py_None) sets[codes[k]] = PyList_GET_ITEM(lines, k);
  auto has = [](PyObject* set, uint64_t value) {
    PyObject* number = PyLong_FromUnsignedLongLong(value);
    int found = PySet_Contains(set, number);
    Py_DECREF(number);
    return found == 1;
  };
  for (; i >= 0 && i < n; i += backwards ? -1 : 1) {
    Found& e = by_time[i];
    if (wanted != Py_None && !has(wanted, e.frame)) continue;
    if (lines != Py_None) {
      auto set = sets.find(e.code);
      if (set == sets.end() || !has(set->second, e.line)) continue;
    }
    return Py_BuildValue("KKIil", (unsigned long long)e.time, (unsigned long long)e.frame, e.line,
                         e.lasti, position_of(e.code));
  }
  if (PyErr_Occurred()) return nullptr;
  Py_RETURN_NONE;
}

// () -> the code objects of the user's files that ran, by number
PyObject* list_codes(PyObject*, PyObject*) {
  PyObject* list = PyList_New(0);
  for (Code* c : codes) PyList_Append(list, (PyObject*)c->code);
  return list;
}

// frame(id) -> (parent, code's number, node of globals, node of locals or None) or None
PyObject* describe_frame(PyObject*, PyObject* args) {
  unsigned long long id;
  if (!PyArg_ParseTuple(args, "K", &id)) return nullptr;
  auto found = frames.find(id);
  if (found == frames.end()) Py_RETURN_NONE;
  Frame& f = found->second;
  return Py_BuildValue("KlNN", (unsigned long long)f.parent, position_of(f.code),
                       to_python(ref_to(f.globals)), f.locals ? to_python(ref_to(f.locals))
                                                              : Py_NewRef(Py_None));
}

// (frame, time) -> (time, line) of its last event until then, calls on a line included
static Chunk* last_chunk_of(uint64_t frame, Time t, Time& found) {
  for (size_t k = chunks.size(); k-- > 0;) {
    Chunk* c = chunks[k];
    for (size_t j = c->events.size(); j-- > 0;)
      if (c->events[j].time <= t && c->events[j].frame == frame) {
        found = c->events[j].time;
        return c;
      }
  }
  return nullptr;
}

static void replay(Chunk* c, uint64_t frame, Time t, std::vector<Ref>& slots) {
  for (size_t j = 0; j < c->events.size() && c->events[j].time <= t; j++) {
    if (c->events[j].frame != frame) continue;
    size_t k = c->events[j].first;
    size_t end = j + 1 < c->events.size() ? c->events[j + 1].first : c->changes.size();
    for (; k < end; k++) slots[c->changes[k].slot] = c->changes[k].value;
  }
}

// slots(frame, time) -> {name: value or node}
PyObject* slots_of(PyObject*, PyObject* args) {
  unsigned long long id, t;
  if (!PyArg_ParseTuple(args, "KK", &id, &t)) return nullptr;
  auto frame = frames.find(id);
  if (frame == frames.end()) Py_RETURN_NONE;
  Code* code = frame->second.code;
  std::vector<Ref> slots(code->size);
  Time in_log = 0, in_ring = 0;
  Chunk* c = last_chunk_of(id, t, in_log);
  for (size_t k = 0; k < code->ring.size(); k++) {
    HotEvent& e = code->ring[k];
    if (e.frame != id || e.time > t || e.time < std::max(in_log, in_ring)) continue;
    in_ring = e.time;
    std::copy_n(code->values.begin() + k * code->size, code->size, slots.begin());
  }
  if (c && !in_ring) replay(c, id, t, slots);
  PyObject* found = PyDict_New();
  for (int i = 0; i < code->size; i++) {
    if (!slots[i]) continue;
    PyObject* value = to_python(slots[i]);
    PyDict_SetItem(found, PyTuple_GET_ITEM(code->code->co_localsplusnames, i), value);
    Py_DECREF(value);
  }
  return found;
}

static PyObject* items_to_python(Node* n, std::vector<Ref>& refs) {
  PyObject* list = PyList_New(0);
  size_t i = 0;
  auto add = [&](Ref key, Ref value) {
    PyObject* pair = Py_BuildValue("NN", to_python(key), to_python(value));
    PyList_Append(list, pair);
    Py_DECREF(pair);
  };
  if (n->kind == INSTANCE)
    for (PyObject* name : n->type->names) {
      if (i < refs.size() && refs[i]) add(ref_to(name), refs[i]);
      i++;
    }
  if (n->kind == INSTANCE || n->kind == DICT) {
    for (; i + 1 < refs.size(); i += 2) add(refs[i], refs[i + 1]);
    return list;
  }
  for (Ref r : refs) {
    PyObject* value = to_python(r);
    PyList_Append(list, value);
    Py_DECREF(value);
  }
  return list;
}

enum { EXACT, UNCERTAIN, NOT_KNOWN, TOO_LARGE };

static int certainty(Node* n, Time t, Time until) {
  if (n->too_big) return TOO_LARGE;
  if (!n->first) return NOT_KNOWN;
  if (n->kind == TUPLE) return EXACT;
  if (t < n->first) return NOT_KNOWN;
  return t > until ? UNCERTAIN : EXACT;
}

// content(node, time) -> (kind, type, object or None, certainty, items or bytes, length, is a part)
PyObject* content_of(PyObject*, PyObject* args) {
  unsigned long long address, t;
  if (!PyArg_ParseTuple(args, "KK", &address, &t)) return nullptr;
  Node* n = (Node*)address;
  if (std::find(all_nodes.begin(), all_nodes.end(), n) == all_nodes.end()) {
    PyErr_SetString(PyExc_KeyError, "the past no longer has it");
    return nullptr;
  }
  std::vector<Ref> refs = n->refs;
  std::string bytes = n->bytes;
  Py_ssize_t length = n->length;
  bool window = n->window;
  Time until = n->obj ? n->verified : ~0ull;
  bool is_memory = n->kind == BUFFER || n->kind == TENSOR;
  if (n->log)
    for (auto c = n->log->rbegin(); c != n->log->rend() && c->time > t; ++c) {
      if (is_memory) {
        bytes.replace(c->start, c->inserted, c->bytes);
      } else {
        refs.erase(refs.begin() + c->start, refs.begin() + c->start + c->inserted);
        refs.insert(refs.begin() + c->start, c->removed.begin(), c->removed.end());
      }
      length = c->length;
      window = c->window;
      until = c->before;
    }
  PyObject* type = Py_None;
  if (n->obj || n->type) type = (PyObject*)(n->obj ? Py_TYPE(n->obj) : n->type->type);
  PyObject* payload = is_memory || n->kind == TEXT || n->kind == OPAQUE
                          ? PyBytes_FromStringAndSize(bytes.data(), bytes.size())
                          : items_to_python(n, refs);
  return Py_BuildValue("iOOiNni", (int)n->kind, type, n->obj ? n->obj : Py_None,
                       certainty(n, t, until), payload, length, (int)window);
}

// () -> figures of what is kept, and (code's number, line) of hot lines
PyObject* statistics(PyObject*, PyObject*) {
  uint64_t events = 0, changes = 0, contents = 0;
  for (Chunk* c : chunks) events += c->events.size();
  for (Node* n : all_nodes) contents += n->log ? n->log->size() : 0;
  for (Chunk* c : chunks) changes += c->changes.size();
  PyObject* hot = PyList_New(0);
  for (size_t k = 0; k < codes.size(); k++)
    for (size_t i = 0; i < codes[k]->was_hot.size(); i++) {
      if (!codes[k]->was_hot[i]) continue;
      PyObject* line = Py_BuildValue("nI", (Py_ssize_t)k, (unsigned)(codes[k]->first + i));
      PyList_Append(hot, line);
      Py_DECREF(line);
    }
  return Py_BuildValue("{sKsKsKsKsKsKsKsKsKsN}", "now", now, "events", events, "changes", changes,
                       "nodes", (uint64_t)all_nodes.size(), "contents", contents, "bytes",
                       (uint64_t)kept_bytes, "dropped", dropped_events, "left_out", looks_left_out,
                       "oldest", oldest(), "hot", hot);
}
