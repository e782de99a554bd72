// What is known of a code object: asked of Python once, and kept in its co_extra.
#include "log.h"

#if PY_VERSION_HEX >= 0x030c0000
#define GET_EXTRA PyUnstable_Code_GetExtra
#define SET_EXTRA PyUnstable_Code_SetExtra
#define REQUEST_EXTRA PyUnstable_Eval_RequestCodeExtraIndex
#else
#define GET_EXTRA _PyCode_GetExtra
#define SET_EXTRA _PyCode_SetExtra
#define REQUEST_EXTRA _PyEval_RequestCodeExtraIndex
#endif

PyObject *is_user, *lines_of;
std::vector<Code*> codes;

// A list of (acts, slots, names), from the code's first line.
static void read_lines(Code* c) {
  PyObject* list = PyObject_CallOneArg(lines_of, (PyObject*)c->code);
  for (Py_ssize_t i = 0; list && i < PyList_GET_SIZE(list); i++) {
    PyObject* given = PyList_GET_ITEM(list, i);
    PyObject *slots = PyTuple_GET_ITEM(given, 1), *names = PyTuple_GET_ITEM(given, 2);
    Line line;
    line.acts = PyObject_IsTrue(PyTuple_GET_ITEM(given, 0));
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(slots); k++)
      line.slots.push_back((int)PyLong_AsLong(PyTuple_GET_ITEM(slots, k)));
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(names); k++)
      line.names.push_back(Py_NewRef(PyTuple_GET_ITEM(names, k)));
    c->lines.push_back(line);
  }
  Py_XDECREF(list);
  c->hits.assign(c->lines.size(), 0);
  c->was_hot.assign(c->lines.size(), false);
}

Code* code_of(PyCodeObject* code) {
  static Py_ssize_t index = REQUEST_EXTRA(nullptr);
  void* known = nullptr;
  GET_EXTRA((PyObject*)code, index, &known);
  if (known) return (Code*)known;
  Code* c = new Code();
  c->code = code;
  c->size = code->co_nlocalsplus;
  c->first = code->co_firstlineno;
  c->is_generator = code->co_flags & (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR);
  c->is_module = !(code->co_flags & CO_OPTIMIZED);
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  PyObject* said = PyObject_CallOneArg(is_user, code->co_filename);
  c->is_user = said && PyObject_IsTrue(said) == 1;
  Py_XDECREF(said);
  if (c->is_user) {
    Py_INCREF(code);
    codes.push_back(c);
    for (int i = 0; i < c->size; i++)
      c->kinds.push_back((uint8_t)PyBytes_AS_STRING(code->co_localspluskinds)[i]);
    read_lines(c);
  }
  PyErr_Restore(type, value, trace);
  SET_EXTRA((PyObject*)code, index, c);
  return c;
}
