// What happens at a line, a call and a return.
#include <algorithm>

#include "log.h"

#ifndef CO_FAST_CELL
#define CO_FAST_CELL 0x40
#define CO_FAST_FREE 0x80
#endif

static uint64_t last_id;
static Activation *current, *before;  // of the event now; of the line that has just ended

static PyObject* value_of(PyObject* slot, uint8_t kind) {
  slot = SHIM_OBJECT(slot);
  if (slot && (kind & (CO_FAST_CELL | CO_FAST_FREE)) && PyCell_Check(slot)) return PyCell_GET(slot);
  return slot;
}

static inline bool is_same(Activation* a, int i, PyObject* v) {
  if (a->raw[i] != v) return false;
  if (!a->has_text || !v) return true;
  Ref r = a->slots[i];
  if (!r.is_node() || r.node()->kind != TEXT) return !is_long_text(v);
  Py_ssize_t length = PyUnicode_CheckExact(v) ? PyUnicode_GET_LENGTH(v) :
                      PyBytes_CheckExact(v) ? PyBytes_GET_SIZE(v) : -1;
  return r.node()->length == length;
}

static void put(Activation* a, int i, Ref value, PyObject* raw) {
  Ref old = a->slots[i];
  a->nodes += value.is_node() - old.is_node();
  a->has_text |= value.is_node() && value.node()->kind == TEXT;
  hold(value);
  a->slots[i] = value;
  a->raw[i] = raw;
  unhold(old);
  release(old);
}

// --- calls ---------------------------------------------------------------------------------------

static Activation* caller_of(void* frame) {
  for (void* f = shim_caller(frame); f; f = shim_caller(f)) {
    if (!code_of(shim_code(f))->is_user) continue;
    auto found = activations.find(f);
    if (found != activations.end()) return found->second;
  }
  return nullptr;
}

static void end(Activation* a, bool ends_now) {
  if (current == a) current = nullptr;
  if (before == a) before = nullptr;
  for (int i = 0; i < a->code->size; i++) {
    Ref r = a->slots[i];
    unhold(r);
    // With its frame it dies, so a weak reference to it must die now, not after our next event.
    if (ends_now && r.is_node() && r.node()->obj && !r.node()->held && r.node()->kind != TEXT)
      if (Py_REFCNT(r.node()->obj) == 2) bury(r.node());
    release(r);
  }
  for (auto& [frame, other] : activations)
    if (other->up == a) other->up = nullptr;
  delete a;
}

static Activation* begin(void* frame, Code* code) {
  auto known = activations.find(frame);
  if (known != activations.end()) {
    Activation* old = known->second;
    activations.erase(known);
    end(old, false);
  }
  Activation* a = new Activation();
  a->id = ++last_id;
  a->code = code;
  a->frame = frame;
  a->raw.assign(code->size, nullptr);
  a->slots.assign(code->size, Ref{});
  a->up = caller_of(frame);
  a->parent = a->up ? a->up->id : 0;
  PyObject *globals = shim_globals(frame), *locals = code->is_module ? shim_dict(frame) : nullptr;
  a->globals = node_of(globals, DICT);
  if (locals && locals != globals && PyDict_CheckExact(locals)) a->locals = node_of(locals, DICT);
  activations[frame] = a;
  frames[a->id] = Frame{a->parent, code, a->globals, a->locals, now};
  return a;
}

Activation* activation_of(void* frame, Code* code) {
  if (current && current->frame == frame && current->code == code) return current;
  auto found = activations.find(frame);
  if (found != activations.end() && found->second->code == code) return current = found->second;
  return current = begin(frame, code);
}

static bool has_changed(Activation* a) {
  PyObject** slots = shim_slots(a->frame);
  for (int i = 0; i < a->code->size; i++)
    if (!is_same(a, i, value_of(slots[i], a->code->kinds[i]))) return true;
  return false;
}

void on_call(void* frame, Code* code, bool is_fresh) {
  if (!is_fresh) {
    Activation* a = activation_of(frame, code);
    a->up = caller_of(frame);
    return;
  }
  Activation* a = current = begin(frame, code);
  if (a->up && has_changed(a->up)) {
    on_line(a->up, a->up->frame, 0, true);
    current = a;
  }
}

void on_return(void* frame, Code* code) {
  auto found = activations.find(frame);
  if (found == activations.end() || found->second->code != code) return;
  Activation* a = found->second;
  if (before == a) left_pending.swap(a->pending);
  activations.erase(found);
  end(a, true);
}

// --- contents ------------------------------------------------------------------------------------

// Memory may be shared: after a line that named a buffer, all of the frame's are looked at.
static void look_at_buffers(Activation* a, Time t) {
  if (a->nodes)
    for (Ref r : a->slots)
      if (r.is_node() && r.node()->is_buffer()) look(r.node(), limits.depth, t);
  if (!a->code->is_module) return;
  std::vector<Ref> globals = a->globals->refs;
  for (Ref r : globals)
    if (r.is_node() && r.node()->is_buffer()) look(r.node(), limits.depth, t);
}

static bool look_again(std::vector<Node*>& named, Time t) {
  bool buffers = false;
  for (Node* n : named) {
    look(n, limits.depth, t);
    buffers |= n->is_buffer();
  }
  named.clear();
  return buffers;
}

static void finish_line(Activation* a, Time t) {
  looks_left = limits.looks;
  deep_left = limits.deep;
  bytes_left = limits.line_bytes;
  if (!left_pending.empty()) a->saw_buffer |= look_again(left_pending, t);
  if (before && before != a)
    for (Node* n : before->pending) look(n, limits.depth, t);
  bool buffers = a->saw_buffer;
  if (!a->pending.empty()) buffers |= look_again(a->pending, t);
  a->saw_buffer = false;
  if (!buffers) return;
  look_at_buffers(a, t);
  for (Activation* up = a->up; up; up = up->up) {
    look_at_buffers(up, t);
    up->saw_buffer = true;
  }
}

static void look_at_scope(Node* n, Time t) {
  if (dict_is_same(n))
    n->verified = t;
  else
    look(n, limits.depth + 1, t);
}

static void begin_line(Activation* a, Line* line, Time t) {
  if (a->locals) look_at_scope(a->locals, t);
  look_at_scope(a->globals, t);
  before = a;
  if (!line || !line->acts) return;
  auto name = [&](Node* n) {
    look(n, limits.depth, t);
    a->pending.push_back(n);
  };
  for (int i : line->slots)
    if (a->slots[i].is_node()) name(a->slots[i].node());
  for (PyObject* key : line->names) {
    PyObject* v = a->locals ? PyDict_GetItem(a->locals->obj, key) : nullptr;
    if (!v) v = PyDict_GetItem(a->globals->obj, key);
    Kind kind = v ? kind_of(v) : ATOM;
    if (kind != ATOM && kind != UNKEPT && kind != OPAQUE) name(node_of(v, kind));
  }
}

// --- lines ---------------------------------------------------------------------------------------

uint32_t* hits_of(Code* code, uint32_t line) {
  if (code->step != step_number) {
    code->step = step_number;
    std::fill(code->hits.begin(), code->hits.end(), 0);
  }
  uint32_t i = line - code->first;
  return i < code->hits.size() ? &code->hits[i] : nullptr;
}

static bool is_hot(Code* code, uint32_t line) {
  uint32_t* hits = hits_of(code, line);
  if (!hits || ++*hits <= (uint32_t)limits.line) return false;
  code->was_hot[line - code->first] = true;
  return true;
}

static Chunk* chunk_for(Activation* a, uint32_t line, int lasti) {
  Chunk* c = chunks.back();
  bool is_full = (long)c->events.size() >= limits.chunk;
  is_full |= kept_bytes > c->before + limits.memory / 16 && !c->events.empty();
  if (is_full) c = new_chunk();
  c->events.push_back(Event{now, a->id, line, lasti, (uint32_t)c->changes.size()});
  c->cost += sizeof(Event);
  kept_bytes += sizeof(Event);
  return c;
}

static void compare_slots(Activation* a, Chunk* c, bool looks) {
  PyObject** slots = shim_slots(a->frame);
  bool is_key = c && a->chunk != c->id;
  if (c) a->chunk = c->id;
  for (int i = 0; i < a->code->size; i++) {
    PyObject* v = value_of(slots[i], a->code->kinds[i]);
    bool changed = !is_same(a, i, v) || (c && a->has_placeholder && is_placeholder(a->slots[i]));
    if (!changed && !c) continue;
    uint64_t bit = 1ull << std::min(i, 63);
    if (changed) {
      put(a, i, c ? ref_of_slot(v) : ref_of_hot_slot(v), v);
      Ref r = a->slots[i];
      if (!c) a->has_placeholder |= is_placeholder(r);
      if (looks && r.is_node()) look(r.node(), limits.depth, now);
      if (!c) a->dirty |= bit;
    }
    if (!c) continue;
    if (!(changed || (is_key && v) || (a->dirty & bit))) continue;
    Ref r = a->slots[i];
    if (r && !r.is_node()) Py_INCREF(r.atom());
    log_change(c, i, r);
  }
  if (!c) return;
  a->dirty = 0;
  a->has_placeholder = false;
}

void on_line(Activation* a, void* frame, uint32_t line, bool is_call) {
  Time t = ++now;
  bool hot = !is_call && is_hot(a->code, line);
  share(hot);
  int lasti = is_call ? -1 : shim_lasti(frame);
  if (!is_call && !hot) finish_line(a, t);
  Chunk* c = hot ? nullptr : chunk_for(a, line, lasti);
  compare_slots(a, c, !hot);
  if (hot) {
    log_hot(a, line, lasti);
    a->pending.clear();
    before = nullptr;
    looks_left = 8;
    if (a->code->is_module) look(a->locals ? a->locals : a->globals, 1, t);  // its variables
  } else if (!is_call) {
    begin_line(a, a->code->at(line), t);
  }
  settle(8);
  if (tensor_api && !(t & 15)) tensor_api->recount_some();
  if (!(t & 63) || kept_bytes > (size_t)limits.memory) keep_to_memory();
}

void look_at_all() {
  ++now;
  share(false);
  std::vector<Node*> all = all_nodes;
  for (Node* n : all) {
    looks_left = 1;
    bytes_left = 1l << 40;
    look(n, 1, now);
  }
}
