// What the recorder keeps: values, and the contents of containers as they changed.
#pragma once
#include "shim.h"

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "table.h"
#include "tensors.h"

typedef uint64_t Time;  // counts the events; an event's time is its position

enum Kind : uint8_t {
  ATOM,      // never changes, and may be held: a number, a text, a type, a tuple of such
  LIST, DICT, SET, TUPLE, DEQUE,
  INSTANCE,  // attributes in a __dict__ and in slots
  BUFFER,    // an array of NumPy, a bytearray, an array
  TENSOR,
  OPAQUE,    // content is not looked at: a function, an iterator
  UNKEPT,    // has a finalizer, which must run when the program lets go: not held, for no moment
  TEXT,      // a long text, of which only the beginning is kept
};

struct Node;

// An atom, which is held, or a node, which is not: the collection of nodes is `sweep`.
struct Ref {
  uintptr_t bits = 0;
  bool is_node() const { return bits & 1; }
  Node* node() const { return reinterpret_cast<Node*>(bits & ~uintptr_t(1)); }
  PyObject* atom() const { return reinterpret_cast<PyObject*>(bits); }
  explicit operator bool() const { return bits != 0; }
};
inline Ref ref_to(Node* n) { return Ref{reinterpret_cast<uintptr_t>(n) | 1}; }
inline Ref ref_to(PyObject* atom) { return Ref{reinterpret_cast<uintptr_t>(atom)}; }

struct Type {
  PyTypeObject* type;
  Kind kind;
  bool has_dict = false, is_deep = false;
  std::vector<Py_ssize_t> offsets;  // of slots
  std::vector<PyObject*> names;
  Node* standin = nullptr;  // for all its objects that are not kept
};

// How to take a content back by one change: at `start`, `inserted` items give place to `removed`.
struct Change {
  Time time, before;  // first seen so; last seen as it was before
  uint32_t start, inserted;
  std::vector<Ref> removed;
  std::string bytes;
  Py_ssize_t length;
  bool window;
};

struct Had {
  void* storage;
  uint64_t number;  // it was noted as
  Time since;
};

struct Node {
  PyObject* obj = nullptr;   // held; null once nothing else held it: the content is kept then
  PyObject* dict = nullptr;  // held, of an instance
  Type* type = nullptr;
  Kind kind;
  bool window = false, touched = true, too_big = false, in_limbo = false, marked = false;
  bool has_buffers = false;
  bool is_deep = false;          // when it is new, all that is in it is looked at: a module
  Time first = 0, verified = 0;  // when the content was first and last compared; 0: never
  Time stamp = 0;                // the last look, and its depth
  int depth = 0;
  int held = 0;  // by how many current contents and slots
  uint32_t cursor = 0, nodes = 0, index = 0;
  uint64_t version = 0;
  Py_ssize_t length = 0;
  std::vector<PyObject*> raw;  // the items as they were compared; refs: as they are kept
  std::vector<Ref> refs;
  std::string bytes;  // the memory of a buffer or tensor after its header; the beginning of a text
  std::unique_ptr<std::deque<Change>> log;
  size_t cost = 0, log_cost = 0;
  std::vector<Had> had;  // storages of a large tensor; the last one is what it has
  bool is_buffer() const { return kind == BUFFER || kind == TENSOR || has_buffers; }
};

struct Limits {
  long line = 1000;      // hits of a line in a training step, after which it goes to a ring
  long ring = 1000;      // turns a ring holds
  long depth = 3;        // of containers, from a name on a line
  long items = 4096;     // of a list, or of a dict whose keys are texts
  long entries = 512;    // of other dicts, and of sets
  long window = 256;     // items at either end that are kept of longer ones
  long bytes = 65536;    // of a buffer or a small tensor
  long line_bytes = 262144;  // compared at one event
  long looks = 256;      // contents compared at one event
  long deep = 16384;     // new contents of modules and optimizers, at one event
  long children = 64;    // of one container, at one event
  long changes = 65536;  // kept of one container
  long text = 4096;      // characters
  long chunk = 8192;     // events
  long memory = 256l << 20;
};

extern Limits limits;
extern Time now;
extern size_t kept_bytes;       // by all that is kept
extern uint64_t looks_left_out;  // contents that were to be compared, over `looks`
extern long looks_left, bytes_left, deep_left;  // at this event
extern std::vector<Node*> all_nodes;
extern Table<Node*> nodes;  // by object
extern TensorApi* tensor_api;
void share(bool is_hot);  // with what keeps storages, and counts their bytes
extern PyObject* classify;  // type -> its kind, asked once for each type
extern PyTypeObject* deque_type;

// kinds.cpp
Kind kind_of(PyObject* v);
Type* type_of(PyTypeObject* type);
Ref ref_of_item(PyObject* v);
Ref ref_of_slot(PyObject* v);
Ref ref_of_hot_slot(PyObject* v);
bool is_placeholder(Ref r);  // of what a hot line made
Ref copied(Ref r);         // for the log: long texts are shortened
size_t weight(Ref r);      // bytes of an atom
inline void release(Ref r) {
  if (r && !r.is_node()) Py_DECREF(r.atom());
}
void forget_types();
// Numbers weigh the same, so what replaces one weighs no more.
inline size_t weight_over_number(Ref r) {
  if (!r || r.is_node() || PyLong_CheckExact(r.atom()) || PyFloat_CheckExact(r.atom())) return 0;
  return weight(r);
}
inline bool is_long_text(PyObject* v) {
  return (PyUnicode_CheckExact(v) && PyUnicode_GET_LENGTH(v) > limits.text) ||
         (PyBytes_CheckExact(v) && PyBytes_GET_SIZE(v) > limits.text);
}

// nodes.cpp
Node* node_of(PyObject* v, Kind kind);
Node* bare_node(Kind kind, Type* type);
void hold(Ref r);
void unhold(Ref r);
void settle(int most);     // lets go of what only the recorder still holds
void bury(Node* n);        // its object is about to be gone
extern std::vector<PyObject*> dying;
void let_die();            // runs finalizers: not while an event is handled
void recost(Node* n);
size_t cost_of(const Change& c);
void drop_oldest_change(Node* n);
void sweep(Time oldest);   // forgets nodes that were not marked, and changes before `oldest`
void mark(Ref r);
void mark_deep();

// contents.cpp
void look(Node* n, int depth, Time t);
bool dict_is_same(Node* n);
void renounce(Node* n);  // of a dict that is no longer watched
