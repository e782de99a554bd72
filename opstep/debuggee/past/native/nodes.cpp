// Nodes: objects with a content, for as long as the kept part of the past has them.
//
// A node holds its object while anything else does. When nothing else does, the object is let go,
// so that finalizers run, weak references die and memory is returned when the program expects it,
// and the node stands for it with its content. `held` counts the slots and current contents that
// have the object: their raw addresses are compared, so their objects must not be freed under them.
#include <algorithm>

#include "kept.h"

std::vector<Node*> all_nodes;
Table<Node*> nodes;
size_t kept_bytes;
static std::vector<Node*> limbo;       // no slot and no content has them, but someone did
std::vector<PyObject*> dying;
static std::vector<Node*> marked;

Node* bare_node(Kind kind, Type* type) {
  Node* n = new Node;
  n->kind = kind;
  n->type = type;
  n->index = all_nodes.size();
  all_nodes.push_back(n);
  recost(n);
  return n;
}

Node* node_of(PyObject* v, Kind kind) {
  if (Node** known = nodes.get(v)) return *known;
  Node* n = bare_node(kind, kind == INSTANCE ? type_of(Py_TYPE(v)) : nullptr);
  n->obj = Py_NewRef(v);
  n->is_deep = n->type && n->type->is_deep;
  nodes[v] = n;
  return n;
}

void recost(Node* n) {
  size_t cost = sizeof(Node) + 16 * n->raw.size() + n->bytes.size() + n->log_cost;
  kept_bytes += cost - n->cost;
  n->cost = cost;
}

size_t cost_of(const Change& c) {
  size_t cost = sizeof(Change) + 16 * c.removed.size() + c.bytes.size();
  for (Ref r : c.removed) cost += weight(r);
  return cost;
}

void hold(Ref r) {
  if (r && r.is_node()) r.node()->held++;
}

void unhold(Ref r) {
  if (!r || !r.is_node()) return;
  Node* n = r.node();
  if (--n->held == 0 && n->obj && !n->in_limbo) {
    n->in_limbo = true;
    limbo.push_back(n);
  }
}

static void let_go(Node* n) {
  nodes.erase(n->obj);
  renounce(n);
  dying.push_back(n->obj);
  if (n->dict) dying.push_back(n->dict);
  n->obj = n->dict = nullptr;
  for (Ref r : n->refs) unhold(r);
}

void bury(Node* n) {
  if (!n->obj) return;
  if (n->kind != OPAQUE) {
    looks_left = std::max(looks_left, 1l);
    look(n, 1, now);
  } else if (PyFunction_Check(n->obj)) {
    const char* name = PyUnicode_AsUTF8(((PyFunctionObject*)n->obj)->func_name);
    n->bytes = name ? name : "?";
  }
  if (!n->had.empty()) tensor_api->recount(n->had.back().number);
  if (!n->type) n->type = type_of(Py_TYPE(n->obj));
  for (Ref r : n->refs) n->log_cost += weight(r);
  recost(n);
  let_go(n);
}

static bool settle_one(size_t i) {
  Node* n = limbo[i];
  bool is_ours = n->obj && !n->held && Py_REFCNT(n->obj) == 1;
  if (n->obj && !n->held && !is_ours) return false;
  limbo[i] = limbo.back();
  limbo.pop_back();
  n->in_limbo = false;
  if (is_ours) bury(n);
  return is_ours;
}

// The newest first, and a few of the others by turns: what is in use elsewhere stays here long.
void settle(int most) {
  static size_t turn = 0;
  int left = most;
  for (size_t i = limbo.size(); i-- > 0 && left-- > 0;)
    if (settle_one(i)) i = limbo.size();  // what it held may be ours alone as well
  for (int k = 0; k < 4 && (size_t)most < limbo.size(); k++) settle_one(turn++ % limbo.size());
}

void let_die() {
  while (!dying.empty()) {
    PyObject* o = dying.back();
    dying.pop_back();
    Py_DECREF(o);
  }
}

static void discard(Change& c) {
  for (Ref r : c.removed) release(r);
}

static void forget(Node* n) {
  for (Ref r : n->refs) release(r);
  if (n->log)
    for (auto& c : *n->log) discard(c);
  for (auto& had : n->had) tensor_api->release(had.number);
  if (n->type && n->type->standin == n) n->type->standin = nullptr;
  kept_bytes -= n->cost;
  all_nodes[n->index] = all_nodes.back();
  all_nodes[n->index]->index = n->index;
  all_nodes.pop_back();
  delete n;
}

void drop_oldest_change(Node* n) {
  Change& c = n->log->front();
  n->log_cost -= cost_of(c);
  n->first = c.time;
  discard(c);
  n->log->pop_front();
}

static void trim(Node* n, Time oldest) {
  while (n->log && !n->log->empty() && n->log->front().time <= oldest) drop_oldest_change(n);
  while (n->had.size() > 1 && n->had[1].since <= oldest) {
    tensor_api->release(n->had.front().number);
    n->had.erase(n->had.begin());
  }
  recost(n);
}

void mark(Ref r) {
  if (!r || !r.is_node() || r.node()->marked) return;
  r.node()->marked = true;
  marked.push_back(r.node());
}

void mark_deep() {
  while (!marked.empty()) {
    Node* n = marked.back();
    marked.pop_back();
    for (Ref r : n->refs) mark(r);
    if (n->log)
      for (auto& c : *n->log)
        for (Ref r : c.removed) mark(r);
  }
}

void sweep(Time oldest) {
  for (Node* n : all_nodes) trim(n, oldest);
  std::vector<Node*> dead;
  for (Node* n : all_nodes) {
    if (!n->marked) dead.push_back(n);
    n->marked = false;
  }
  for (Node* n : dead)  // before any is deleted: they may hold each other
    if (n->obj) let_go(n);
  size_t left = 0;
  for (Node* n : limbo) {
    n->in_limbo = n->obj != nullptr;
    if (n->in_limbo) limbo[left++] = n;
  }
  limbo.resize(left);
  for (Node* n : dead) forget(n);
  if (tensor_api) tensor_api->trim(oldest);
  share(false);
}
