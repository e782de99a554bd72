// Kinds of values, and how each is kept.
#include "kept.h"
// After Python.h.
#include <structmember.h>

static Table<Type*> types;
static const long DEEP = 64;  // as in kinds.py

static bool has_finalizer(PyTypeObject* t) { return t->tp_finalize || t->tp_del; }

static void add_slots(Type* found) {
  PyObject* mro = found->type->tp_mro;
  for (Py_ssize_t i = 0; mro && i < PyTuple_GET_SIZE(mro); i++) {
    PyTypeObject* base = (PyTypeObject*)PyTuple_GET_ITEM(mro, i);
    if (!(base->tp_flags & Py_TPFLAGS_HEAPTYPE) || !base->tp_dict) continue;
    PyObject *key, *value;
    Py_ssize_t at = 0;
    while (PyDict_Next(base->tp_dict, &at, &key, &value)) {
      if (Py_TYPE(value) != &PyMemberDescr_Type) continue;
      PyMemberDef* member = ((PyMemberDescrObject*)value)->d_member;
      if (member->type != T_OBJECT_EX) continue;
      found->offsets.push_back(member->offset);
      found->names.push_back(Py_NewRef(key));
    }
  }
}

static void add_attributes(Type* found) {
  PyTypeObject* t = found->type;
  found->has_dict = t->tp_dictoffset != 0;
#ifdef Py_TPFLAGS_MANAGED_DICT
  found->has_dict |= (t->tp_flags & Py_TPFLAGS_MANAGED_DICT) != 0;
#endif
  if (PyType_IsSubtype(t, (PyTypeObject*)PyExc_BaseException)) {
    found->offsets.push_back(offsetof(PyBaseExceptionObject, args));
    found->names.push_back(PyUnicode_InternFromString("args"));
  }
  add_slots(found);
  if (!found->has_dict && found->offsets.empty()) found->kind = OPAQUE;
}

Type* type_of(PyTypeObject* t) {
  if (Type** known = types.get(t)) return *known;
  Type* found = new Type{(PyTypeObject*)Py_NewRef(t), OPAQUE};
  if (has_finalizer(t)) {
    found->kind = UNKEPT;
  } else if (PyType_IsSubtype(t, &PyType_Type)) {
    found->kind = ATOM;
  } else {
    int collects = PyGC_Disable();  // no finalizer runs while a content is read
    PyObject* said = PyObject_CallOneArg(classify, (PyObject*)t);
    if (collects) PyGC_Enable();
    long kind = said ? PyLong_AsLong(said) : (long)OPAQUE;
    Py_XDECREF(said);
    PyErr_Clear();
    found->is_deep = kind & DEEP;
    kind &= ~DEEP;
    found->kind = kind == TENSOR && !tensor_api ? OPAQUE : (Kind)kind;
    if (found->kind == INSTANCE) add_attributes(found);
  }
  return types[t] = found;
}

void forget_types() { types = Table<Type*>(); }

Kind kind_of(PyObject* v) {
  PyTypeObject* t = Py_TYPE(v);
  if (t == &PyLong_Type || t == &PyFloat_Type || t == &PyUnicode_Type || t == &PyBool_Type ||
      v == Py_None || t == &PyType_Type || t == &PyModule_Type || t == &PyBytes_Type)
    return ATOM;
  if (t == &PyList_Type) return LIST;
  if (t == &PyDict_Type) return DICT;
  if (t == &PyFunction_Type) return OPAQUE;
  if (t == &PyTuple_Type) {
    Py_ssize_t n = PyTuple_GET_SIZE(v);
    if (n > 64) return TUPLE;
    for (Py_ssize_t i = 0; i < n; i++) {
      PyObject* item = PyTuple_GET_ITEM(v, i);
      if (!item || is_long_text(item) || kind_of(item) != ATOM) return TUPLE;
    }
    return ATOM;
  }
  return type_of(t)->kind;
}

static Ref standin(PyTypeObject* t) {
  Type* type = type_of(t);
  if (!type->standin) type->standin = bare_node(UNKEPT, type);
  return ref_to(type->standin);
}

static Ref beginning(PyObject* v) {
  Node* n = bare_node(TEXT, type_of(Py_TYPE(v)));
  if (PyUnicode_CheckExact(v)) {
    n->length = PyUnicode_GET_LENGTH(v);
    PyObject* head = PyUnicode_Substring(v, 0, 200);
    PyObject* bytes = head ? PyUnicode_AsEncodedString(head, "utf-8", "replace") : nullptr;
    if (bytes) n->bytes.assign(PyBytes_AS_STRING(bytes), PyBytes_GET_SIZE(bytes));
    Py_XDECREF(head);
    Py_XDECREF(bytes);
    PyErr_Clear();
  } else {
    n->length = PyBytes_GET_SIZE(v);
    n->bytes.assign(PyBytes_AS_STRING(v), 200);
  }
  recost(n);
  return ref_to(n);
}

static Ref kept(PyObject* v, Kind kind) {
  if (kind == ATOM) return ref_to(Py_NewRef(v));
  if (kind == UNKEPT) return standin(Py_TYPE(v));
  return ref_to(node_of(v, kind));
}

Ref ref_of_item(PyObject* v) { return v ? kept(v, kind_of(v)) : Ref{}; }

// `s += x` appends in place only where no one else holds the text: with the old ones held, each
// append would copy the whole text.
Ref ref_of_slot(PyObject* v) {
  if (!v) return Ref{};
  return is_long_text(v) ? beginning(v) : kept(v, kind_of(v));
}

// A container that a hot line makes anew in each turn: its content is not kept, nor itself.
Ref ref_of_hot_slot(PyObject* v) {
  PyTypeObject* t = v ? Py_TYPE(v) : nullptr;
  bool is_plain = t == &PyList_Type || t == &PyDict_Type || t == &PySet_Type || t == &PyTuple_Type;
  if (!is_plain || nodes.get(v) || kind_of(v) == ATOM) return ref_of_slot(v);
  return standin(t);
}

bool is_placeholder(Ref r) {
  return r.is_node() && r.node()->kind == UNKEPT && r.node()->type->kind != UNKEPT;
}

Ref copied(Ref r) {
  if (!r || r.is_node()) return r;
  return is_long_text(r.atom()) ? beginning(r.atom()) : ref_to(Py_NewRef(r.atom()));
}

size_t weight(Ref r) {
  if (!r || r.is_node()) return 0;
  PyObject* v = r.atom();
  if (PyUnicode_CheckExact(v)) return 56 + PyUnicode_GET_LENGTH(v) * PyUnicode_KIND(v);
  if (PyBytes_CheckExact(v)) return 33 + PyBytes_GET_SIZE(v);
  if (PyTuple_CheckExact(v)) return 40 + 40 * PyTuple_GET_SIZE(v);
  return 32;
}
