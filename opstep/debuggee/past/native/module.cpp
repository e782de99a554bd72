// The module `opstep_past`, as Python sees it.
#include "answers.h"
#include "hooks.h"
#include "log.h"

// start(thread's id, memory, classify, is_user, lines_of, handle type, deque, DISABLE)
static PyObject* start(PyObject*, PyObject* args) {
  unsigned long id;
  PyObject *handle, *deque, *disable;
  if (!PyArg_ParseTuple(args, "klOOOOOO", &id, &limits.memory, &classify, &is_user, &lines_of,
                        &handle, &deque, &disable))
    return nullptr;
  for (PyObject* o : {classify, is_user, lines_of}) Py_INCREF(o);
  set_handle_type(handle);
  deque_type = (PyTypeObject*)Py_NewRef(deque);
#if PY_VERSION_HEX >= 0x030c0000
  set_disable(disable);
#endif
  if (!set_thread(id)) {
    PyErr_SetString(PyExc_RuntimeError, "there is no main thread");
    return nullptr;
  }
  if (chunks.empty()) new_chunk();
  turn_on();
  Py_RETURN_NONE;
}

static PyObject* stop(PyObject*, PyObject*) {
  turn_off();
  Py_RETURN_NONE;
}

static PyObject* compose_again(PyObject*, PyObject*) {
  compose();
  Py_RETURN_NONE;
}

static PyObject* step_done(PyObject*, PyObject*) {
  step_number++;
  return PyLong_FromUnsignedLongLong(now);
}

static PyObject* look_at_everything(PyObject*, PyObject*) {
  look_at_all();
  Py_RETURN_NONE;
}

static PyObject* use_tensors(PyObject*, PyObject* capsule) {
  tensor_api = (TensorApi*)PyCapsule_GetPointer(capsule, "opstep.tensors");
  if (!tensor_api) return nullptr;
  Py_RETURN_NONE;
}

static PyObject* set_limit(PyObject*, PyObject* args) {
  const char* name;
  long value;
  if (!PyArg_ParseTuple(args, "sl", &name, &value)) return nullptr;
  struct {
    const char* name;
    long* value;
  } known[] = {{"line", &limits.line}, {"ring", &limits.ring}, {"memory", &limits.memory},
               {"bytes", &limits.bytes}, {"chunk", &limits.chunk}};
  for (auto& k : known)
    if (std::string(name) == k.name) {
      *k.value = value;
      Py_RETURN_NONE;
    }
  PyErr_SetString(PyExc_KeyError, name);
  return nullptr;
}

#define QUERY(name, function) {name, function, METH_VARARGS, nullptr}
#define PLAIN(name, function) {name, function, METH_NOARGS, nullptr}
#define FAST(name, function) {name, (PyCFunction)(void (*)(void))function, METH_FASTCALL, nullptr}

static PyMethodDef methods[] = {
    QUERY("start", start), PLAIN("stop", stop), PLAIN("compose", compose_again),
    PLAIN("step_done", step_done), PLAIN("look_at_all", look_at_everything),
    QUERY("set_limit", set_limit), {"use_tensors", use_tensors, METH_O, nullptr},
    QUERY("find", find_event), PLAIN("codes", list_codes), QUERY("frame", describe_frame),
    QUERY("slots", slots_of), QUERY("content", content_of), PLAIN("statistics", statistics),
    QUERY("last", last_event), QUERY("turns", turns_of),
#if PY_VERSION_HEX >= 0x030c0000
    FAST("on_start", on_py_start), FAST("on_line", on_py_line), FAST("on_return", on_py_return),
    FAST("on_unwind", on_py_unwind),
#endif
    {nullptr, nullptr, 0, nullptr}};

static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "opstep_past", nullptr, -1, methods};

extern "C" __attribute__((visibility("default"))) PyObject* PyInit_opstep_past() {
  return PyModule_Create(&definition);
}
