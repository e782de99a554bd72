// Calls of Python from within an op.
// Part of watcher.cpp, whose internal names it uses.

#pragma once

#include <Python.h>

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include <atomic>
#include <string>
#include <unordered_map>

#include "threads.h"

namespace opstep {
namespace {

constexpr auto KEY = c10::DispatchKey::Fake;

std::atomic<bool> is_active{false};
std::atomic<int64_t> op_count{0};
PyObject *on_bad, *on_healed, *on_read, *on_test, *on_loss;  // callables
std::mutex unread_mutex;
std::unordered_map<std::string, int64_t> unread;  // results that cannot be looked at, by kind

struct Gil {
  PyGILState_STATE state = PyGILState_Ensure();
  ~Gil() { PyGILState_Release(state); }
};

PyObject* none() { Py_RETURN_NONE; }

PyObject* to_python(const c10::IValue& v, bool is_dtype);

template <class List>
PyObject* list_of(const List& values, bool is_dtype) {
  PyObject* list = PyList_New(0);
  for (const c10::IValue& v : values) {
    PyObject* item = to_python(v, is_dtype);
    PyList_Append(list, item);
    Py_DECREF(item);
  }
  return list;
}

// None stands for what only says where and how a result is laid out.
PyObject* to_python(const c10::IValue& v, bool is_dtype) {
  if (v.isTensor()) return v.toTensor().defined() ? THPVariable_Wrap(v.toTensor()) : none();
  if (v.isDouble()) return PyFloat_FromDouble(v.toDouble());
  if (v.isBool()) return PyBool_FromLong(v.toBool());
  if (v.isComplexDouble())
    return PyComplex_FromDoubles(v.toComplexDouble().real(), v.toComplexDouble().imag());
  if (v.isInt() && is_dtype) {
    auto dtype = torch::getTHPDtype(static_cast<at::ScalarType>(v.toInt()));
    return Py_NewRef(reinterpret_cast<PyObject*>(dtype));
  }
  if (v.isInt()) return PyLong_FromLongLong(v.toInt());
  if (v.isSymInt()) return PyLong_FromLongLong(v.toSymInt().guard_int(__FILE__, __LINE__));
  if (v.isString()) return PyUnicode_FromString(v.toStringRef().c_str());
  if (v.isDevice()) return THPDevice_New(v.toDevice());
  if (v.isList()) return list_of(v.toListRef(), is_dtype);
  return none();
}

// Calls Python from within an op: what it asks of PyTorch is not watched. What it raises ends the
// op as an error of its own would.
void call(PyObject* callable, PyObject* arguments) {
  Thread& thread = self();
  c10::impl::ExcludeDispatchKeyGuard unwatched(KEY);
  thread.is_within = true;
  PyObject* result = PyObject_CallObject(callable, arguments);
  thread.is_within = false;
  Py_XDECREF(arguments);
  if (result) return Py_DECREF(result);
  python_error error;
  error.persist();  // this thread may have no Python of its own
  throw error;
}

void call_with(PyObject* callable, const at::Tensor& t) {
  Gil gil;
  call(callable, Py_BuildValue("(N)", THPVariable_Wrap(t)));
}

}  // namespace
}  // namespace opstep
