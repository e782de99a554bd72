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
#include <torch/csrc/utils/tensor_memoryformats.h>

#include <atomic>
#include <string>
#include <unordered_map>

#include "threads.h"

namespace opstep {
namespace {

constexpr auto KEY = c10::DispatchKey::Fake;

using Arguments = c10::SmallVector<c10::IValue, 8>;

std::atomic<bool> is_active{false};
std::atomic<bool> is_looking{true};  // whether anybody wants to know of NaNs and infinities
std::atomic<int64_t> op_count{0};
PyObject *on_bad, *on_healed, *on_read, *on_test, *on_loss;  // callables
std::mutex unread_mutex;
std::unordered_map<std::string, int64_t> unread;  // results that cannot be looked at, by kind

struct Gil {
  PyGILState_STATE state = PyGILState_Ensure();
  ~Gil() { PyGILState_Release(state); }
};

PyObject* none() { Py_RETURN_NONE; }

PyObject* to_python(const c10::IValue& v, c10::TypeKind kind);

template <class List>
PyObject* list_of(const List& values, c10::TypeKind kind) {
  PyObject* list = PyList_New(0);
  for (const c10::IValue& v : values) {
    PyObject* item = to_python(v, kind);
    PyList_Append(list, item);
    Py_DECREF(item);
  }
  return list;
}

// `kind`: of the argument, which has dtypes and layouts as numbers. None stands for generators.
PyObject* to_python(const c10::IValue& v, c10::TypeKind kind) {
  if (v.isTensor() && v.toTensor().unsafeGetTensorImpl()->is_wrapped_number()) {  // a number of the script's text
    if (v.toTensor().scalar_type() == at::kDouble) return PyFloat_FromDouble(*v.toTensor().const_data_ptr<double>());
    if (v.toTensor().scalar_type() == at::kLong) return PyLong_FromLongLong(*v.toTensor().const_data_ptr<int64_t>());
  }
  if (v.isTensor()) return v.toTensor().defined() ? THPVariable_Wrap(v.toTensor()) : none();
  if (v.isDouble()) return PyFloat_FromDouble(v.toDouble());
  if (v.isBool()) return PyBool_FromLong(v.toBool());
  if (v.isComplexDouble())
    return PyComplex_FromDoubles(v.toComplexDouble().real(), v.toComplexDouble().imag());
  if (v.isInt() && kind == c10::TypeKind::ScalarTypeType)
    return Py_NewRef(reinterpret_cast<PyObject*>(torch::getTHPDtype(static_cast<at::ScalarType>(v.toInt()))));
  if (v.isInt() && kind == c10::TypeKind::LayoutType)
    return Py_NewRef(reinterpret_cast<PyObject*>(torch::getTHPLayout(static_cast<at::Layout>(v.toInt()))));
  if (v.isInt() && kind == c10::TypeKind::MemoryFormatType)
    return Py_NewRef(torch::utils::getTHPMemoryFormat(static_cast<at::MemoryFormat>(v.toInt())));
  if (v.isInt()) return PyLong_FromLongLong(v.toInt());
  if (v.isSymInt()) return PyLong_FromLongLong(v.toSymInt().guard_int(__FILE__, __LINE__));
  if (v.isString()) return PyUnicode_FromString(v.toStringRef().c_str());
  if (v.isDevice()) return THPDevice_New(v.toDevice());
  if (v.isList()) return list_of(v.toListRef(), kind);
  return none();
}

// Calls Python from within an op: what it asks of PyTorch is not watched. What it raises ends the
// op as an error of its own would.
PyObject* called(PyObject* callable, PyObject* arguments) {
  Thread& thread = self();
  c10::impl::ExcludeDispatchKeyGuard unwatched(KEY);
  thread.is_within = true;
  PyObject* result = PyObject_CallObject(callable, arguments);
  thread.is_within = false;
  Py_XDECREF(arguments);
  if (result) return result;
  python_error error;
  error.persist();  // this thread may have no Python of its own
  throw error;
}

void call(PyObject* callable, PyObject* arguments) { Py_DECREF(called(callable, arguments)); }

PyObject* given_to(const Facts& facts, const Arguments& arguments) {
  PyObject* given = PyList_New(0);
  for (int k = 0; k < facts.arguments; ++k) {
    PyObject* item = to_python(arguments[k], facts.kinds[k]);
    PyList_Append(given, item);
    Py_DECREF(item);
  }
  return given;
}

void call_with(PyObject* callable, const at::Tensor& t) {
  Gil gil;
  call(callable, Py_BuildValue("(N)", THPVariable_Wrap(t)));
}

}  // namespace
}  // namespace opstep
