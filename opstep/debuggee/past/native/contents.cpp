// Contents of containers: read, compared with what they were, and the difference kept backwards.
#include <algorithm>
#include <cstring>

#include "kept.h"

Time now;
uint64_t looks_left_out;
long looks_left, bytes_left, deep_left;
TensorApi* tensor_api;
PyObject* classify;
PyTypeObject* deque_type;
Limits limits;

static std::vector<PyObject*> found;  // the content now, borrowed
static std::string memory;

static void add_change(Node* n, Change&& c) {
  if (!n->log) n->log = std::make_unique<std::deque<Change>>();
  n->log_cost += cost_of(c);
  n->log->push_back(std::move(c));
  if ((long)n->log->size() > limits.changes) drop_oldest_change(n);
}

// Removed items that are new elsewhere in the content are still held: new ones are held first.
static void replace(Node* n, PyObject** s, size_t from, size_t to, size_t n_new, Change& c) {
  std::vector<Ref> fresh(n_new);
  for (size_t i = 0; i < n_new; i++) {
    fresh[i] = ref_of_item(s[from + i]);
    hold(fresh[i]);
    n->nodes += fresh[i].is_node();
    if (fresh[i].is_node() && fresh[i].node()->is_buffer()) n->has_buffers = true;
  }
  for (size_t i = from; i < to; i++) {
    Ref r = n->refs[i];
    n->nodes -= r.is_node();
    if (n->first) c.removed.push_back(copied(r));
    unhold(r);
    release(r);
  }
  if (n_new == to - from) {
    std::copy(fresh.begin(), fresh.end(), n->refs.begin() + from);
    std::copy(s + from, s + from + n_new, n->raw.begin() + from);
    return;
  }
  n->refs.erase(n->refs.begin() + from, n->refs.begin() + to);
  n->refs.insert(n->refs.begin() + from, fresh.begin(), fresh.end());
  n->raw.erase(n->raw.begin() + from, n->raw.begin() + to);
  n->raw.insert(n->raw.begin() + from, s + from, s + from + n_new);
}

static void differ(Node* n, PyObject** s, size_t m, Py_ssize_t length, bool window, Time t) {
  size_t k = n->raw.size(), least = std::min(k, m);
  bool same = least == 0 || !memcmp(n->raw.data(), s, least * sizeof(PyObject*));
  if (n->first && same && k == m && n->length == length) {
    n->verified = t;
    return;
  }
  size_t p = same ? least : 0, q = 0;
  while (p < least && n->raw[p] == s[p]) p++;
  while (q < least - p && n->raw[k - 1 - q] == s[m - 1 - q]) q++;
  Change c{t, n->verified, (uint32_t)p, (uint32_t)(m - p - q), {}, {}, n->length, n->window};
  replace(n, s, p, k - q, m - p - q, c);
  n->length = length;
  n->window = window;
  n->verified = t;
  if (n->first)
    add_change(n, std::move(c));
  else
    n->first = t;
  recost(n);
}

static void differ_in_memory(Node* n, const std::string& s, Time t) {
  std::string& old = n->bytes;
  size_t k = old.size(), m = s.size(), least = std::min(k, m), p = 0, q = 0;
  if (n->first && old == s) {
    n->verified = t;
    return;
  }
  while (p < least && old[p] == s[p]) p++;
  while (q < least - p && old[k - 1 - q] == s[m - 1 - q]) q++;
  if (n->first) {
    std::string was = old.substr(p, k - p - q);
    Change c{t, n->verified, (uint32_t)p, (uint32_t)(m - p - q), {}, was, 0, false};
    add_change(n, std::move(c));
  } else {
    n->first = t;
  }
  old.replace(p, k - p - q, s, p, m - p - q);
  n->verified = t;
  recost(n);
}

// --- dicts ---------------------------------------------------------------------------------------

static PyObject* dict_of(Node* n) { return n->kind == DICT ? n->obj : n->dict; }

#if PY_VERSION_HEX >= 0x030d0000
static int watcher = -1;
static Table<Node*> watched;

static int changes(PyDict_WatchEvent, PyObject* dict, PyObject*, PyObject*) {
  if (Node** n = watched.get(dict)) (*n)->touched = true;
  return 0;
}

static void watch(Node* n, PyObject* dict) {
  if (watcher < 0) watcher = PyDict_AddWatcher(changes);
  if (watcher < 0 || watched.get(dict)) return PyErr_Clear();
  watched[dict] = n;
  PyDict_Watch(watcher, dict);
}

void renounce(Node* n) {
  PyObject* dict = dict_of(n);
  if (!dict || !watched.get(dict)) return;
  watched.erase(dict);
  PyDict_Unwatch(watcher, dict);
}

bool dict_is_same(Node* n) { return n->first && watcher >= 0 && !n->touched; }

static bool has_changed(Node* n) {
  bool was = n->touched || watcher < 0;
  n->touched = false;
  return was;
}
#else
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
static void watch(Node*, PyObject*) {}
void renounce(Node*) {}

static uint64_t tag(Node* n) { return ((PyDictObject*)dict_of(n))->ma_version_tag; }

bool dict_is_same(Node* n) { return n->first && tag(n) == n->version; }

static bool has_changed(Node* n) {
  uint64_t before = n->version;
  n->version = tag(n);
  return before != n->version;
}
#endif

// Adds the entries to `found`; says whether only some are.
static bool read_entries(PyObject* dict) {
  bool window = PyDict_GET_SIZE(dict) > limits.entries;
  Py_ssize_t at = 0, count = 0, most = window ? limits.window : limits.entries;
  PyObject *key, *value;
  while (count++ < most && PyDict_Next(dict, &at, &key, &value)) {
    found.push_back(key);
    found.push_back(value);
  }
  return window;
}

static void look_at_dict(Node* n, Time t) {
  if (!n->first) watch(n, n->obj);
  if (!has_changed(n)) {
    n->verified = t;
    return;
  }
  PyObject** entries;
  Py_ssize_t count = shim_entries(n->obj, &entries);
  if (count >= 0 && count <= limits.items) return differ(n, entries, 2 * count, count, false, t);
  found.clear();
  bool window = read_entries(n->obj);
  differ(n, found.data(), found.size(), PyDict_GET_SIZE(n->obj), window, t);
}

static bool take_dict(Node* n) {  // true if it may have changed
  PyObject* dict = PyObject_GenericGetDict(n->obj, nullptr);
  if (!dict) {
    PyErr_Clear();
    return false;
  }
  if (!PyDict_Check(dict)) {
    Py_DECREF(dict);
    return false;
  }
  if (n->dict != dict) {
    if (n->dict) renounce(n);
    Py_XDECREF(n->dict);
    n->dict = dict;
    n->version = 0;
    n->touched = true;
    watch(n, dict);
  } else {
    Py_DECREF(dict);
  }
  bool may = has_changed(n);
#if PY_VERSION_HEX >= 0x030d0000 && PY_VERSION_HEX < 0x030e0000
  may = true;  // 3.13 does not notify watchers of stores into inline values
#endif
  return may;
}

static void look_at_instance(Node* n, Time t) {
  found.clear();
  for (Py_ssize_t offset : n->type->offsets) found.push_back(*(PyObject**)((char*)n->obj + offset));
  size_t slots = found.size();
  bool may = n->type->has_dict && take_dict(n);
  if (!may && n->first && (!slots || !memcmp(found.data(), n->raw.data(), 8 * slots))) {
    n->verified = t;
    return;
  }
  bool window = n->dict && read_entries(n->dict);
  differ(n, found.data(), found.size(), n->dict ? PyDict_GET_SIZE(n->dict) : 0, window, t);
}

// --- others --------------------------------------------------------------------------------------

static void look_at_list(Node* n, Time t) {
  PyListObject* list = (PyListObject*)n->obj;
  Py_ssize_t length = Py_SIZE(list);
  if (length <= limits.items) return differ(n, list->ob_item, length, length, false, t);
  found.assign(list->ob_item, list->ob_item + limits.window);
  found.insert(found.end(), list->ob_item + length - limits.window, list->ob_item + length);
  differ(n, found.data(), found.size(), length, true, t);
}

static void look_at_tuple(Node* n, Time t) {
  Py_ssize_t length = PyTuple_GET_SIZE(n->obj), some = std::min(length, (Py_ssize_t)limits.entries);
  if (!n->first) differ(n, ((PyTupleObject*)n->obj)->ob_item, some, length, some < length, t);
  n->verified = t;
}

static void look_at_set(Node* n, Time t) {
  PySetObject* set = (PySetObject*)n->obj;
  found.clear();
  for (Py_ssize_t i = 0; i <= set->mask && (long)found.size() < limits.entries; i++)
    if (set->table[i].key && set->table[i].hash != -1) found.push_back(set->table[i].key);
  differ(n, found.data(), found.size(), set->used, (Py_ssize_t)found.size() < set->used, t);
}

static void look_at_deque(Node* n, Time t) {  // by its type's own functions: no user's
  PyObject* items = deque_type->tp_iter(n->obj);
  if (!items) return PyErr_Clear();
  found.clear();
  PyObject* item;
  while ((long)found.size() < limits.entries && (item = PyIter_Next(items))) {
    Py_DECREF(item);  // the deque has it
    found.push_back(item);
  }
  PyErr_Clear();
  Py_DECREF(items);
  Py_ssize_t length = deque_type->tp_as_sequence->sq_length(n->obj);
  differ(n, found.data(), found.size(), length, (Py_ssize_t)found.size() < length, t);
}

// The header: axes, length of the format, shape, format.
static void look_at_buffer(Node* n, Time t) {
  Py_buffer b;
  if (PyObject_GetBuffer(n->obj, &b, PyBUF_STRIDES | PyBUF_FORMAT)) {
    n->too_big = true;
    return PyErr_Clear();
  }
  n->too_big = b.len > limits.bytes || strchr(b.format ? b.format : "", 'O');
  bool is_read = !n->too_big && (bytes_left -= b.len) >= 0;
  if (is_read) {
    const char* format = b.format ? b.format : "B";
    int64_t head[] = {b.ndim, (int64_t)strlen(format)};
    memory.assign((char*)head, 16);
    memory.append((char*)b.shape, b.ndim * sizeof(Py_ssize_t));
    memory.append(format);
    size_t header = memory.size();
    memory.resize(header + b.len);
    PyBuffer_ToContiguous(&memory[header], &b, b.len, 'C');
  }
  PyBuffer_Release(&b);
  if (is_read) differ_in_memory(n, memory, t);
}

static uint64_t number_of_storage(Node* n, void* storage, Time t) {
  if (n->had.empty() || n->had.back().storage != storage)
    n->had.push_back(Had{storage, tensor_api->note(storage), t});
  return n->had.back().number;
}

// Where ops are watched, a storage is followed. What others write is compared, if it is small.
// The header: axes, dtype, whether the elements follow, whether it requires gradients; offset;
// number of its storage if the elements do not follow; sizes; strides.
static void look_at_tensor(Node* n, Time t) {
  TensorLook x;
  n->too_big = !tensor_api->look(n->obj, &x);
  if (n->too_big) return;
  bool is_small = x.is_cpu && (long)x.nbytes <= limits.bytes && !tensor_api->follows(x.storage);
  if (is_small && (bytes_left -= x.nbytes) < 0) return;
  int64_t flags = (int64_t)is_small << 48 | (int64_t)x.needs_grad << 49;
  int64_t number = is_small ? 0 : (int64_t)number_of_storage(n, x.storage, t);
  int64_t head[] = {x.ndim | (int64_t)x.dtype << 32 | flags, x.offset, number};
  memory.assign((char*)head, 24);
  memory.append((char*)x.sizes, 8 * x.ndim);
  memory.append((char*)x.strides, 8 * x.ndim);
  if (is_small && x.nbytes) memory.append((char*)x.data, x.nbytes);
  differ_in_memory(n, memory, t);
}

static void look_at_content(Node* n, Time t) {
  switch (n->kind) {
    case LIST: return look_at_list(n, t);
    case DICT: return look_at_dict(n, t);
    case INSTANCE: return look_at_instance(n, t);
    case SET: return look_at_set(n, t);
    case TUPLE: return look_at_tuple(n, t);
    case DEQUE: return look_at_deque(n, t);
    case BUFFER: return look_at_buffer(n, t);
    case TENSOR: return look_at_tensor(n, t);
    default: return;
  }
}

static void look_at_children(Node* n, int depth, Time t, bool is_new) {
  long most = is_new ? n->nodes : std::min((long)n->nodes, limits.children);
  size_t size = n->refs.size();
  if ((long)n->nodes <= most) n->cursor = 0;
  for (size_t seen = 0; seen < size && most > 0 && n->refs.size() == size; seen++) {
    Ref r = n->refs[n->cursor % size];
    n->cursor = (n->cursor + 1) % size;
    if (!r.is_node() || !r.node()->obj) continue;
    most--;
    Node* child = r.node();
    child->is_deep |= n->is_deep;
    if (is_new && !child->first) looks_left = std::max(looks_left, 64l);
    if (looks_left < 0) {
      looks_left_out++;
      return;
    }
    look(child, depth, t);
    n->has_buffers |= child->is_buffer();
  }
}

void look(Node* n, int depth, Time t) {
  if (!n->obj || (n->stamp == t && n->depth >= depth)) return;
  bool again = n->stamp == t, is_new = !n->first;
  n->stamp = t;
  n->depth = depth;
  if (!again) {
    if (--looks_left < 0) {
      looks_left_out++;
      n->stamp = 0;
      return;
    }
    look_at_content(n, t);
  }
  bool is_deep = n->is_deep && is_new && deep_left-- > 0;
  if ((depth > 1 || is_deep) && n->nodes)
    look_at_children(n, std::max(depth - 1, 1), t, is_new);
}
