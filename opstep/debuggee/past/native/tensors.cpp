// What the recorder needs of tensors, without a call of Python: the one part that needs PyTorch.
#include <Python.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/python_variable.h>

#include "storages.h"

namespace {

bool look_at(PyObject* object, TensorLook* found) {
  const at::Tensor& t = THPVariable_Unpack(object);
  if (!t.defined()) return false;
  c10::TensorImpl* p = t.unsafeGetTensorImpl();
  const c10::DispatchKeySet wrapped(
      {c10::DispatchKey::Functionalize, c10::DispatchKey::FuncTorchBatched});
  if (!p->has_storage() || p->is_python_dispatch() || p->key_set().has_any(wrapped) ||
      p->has_symbolic_sizes_strides() || p->is_sparse() || p->is_quantized())
    return false;
  const c10::Storage& s = p->storage();
  found->nbytes = s.nbytes();
  found->storage = s.unsafeGetStorageImpl();
  found->is_cpu = p->is_cpu();
  found->needs_grad = t.requires_grad();
  found->data = s.data();
  found->dtype = (int)c10::typeMetaToScalarType(p->dtype());
  found->offset = p->storage_offset();
  found->ndim = (int)p->dim();
  found->sizes = p->sizes().data();
  found->strides = p->strides().data();
  return found->nbytes == 0 || found->data != nullptr;
}

// A tensor that has no sizes, as a nested one, throws where they are asked for: what calls this is
// C, through which no exception may pass into the script.
bool look(void* object, TensorLook* found) {
  try {
    return look_at((PyObject*)object, found);
  } catch (...) {
    return false;
  }
}

TensorApi functions{look,          follows_storage, note_storage,          release_storage,
                    trim_storages, recount_storage, recount_some_storages, &shared};

PyObject* api(PyObject*, PyObject*) {
  return PyCapsule_New(&functions, "opstep.tensors", nullptr);
}

void op_writes(const at::Tensor& t) {
  if (t.has_storage()) before_write(t.storage().unsafeGetStorageImpl(), t.nbytes());
}

// What the watcher of ops calls before one writes.
PyObject* writes(PyObject*, PyObject*) {
  return PyCapsule_New(reinterpret_cast<void*>(&op_writes), "opstep.before_write", nullptr);
}

PyObject* watch(PyObject*, PyObject*) {
  watch_writes();
  Py_RETURN_NONE;
}

// describe(tensor) -> (bytes of its storage, offset, axes)
PyObject* describe(PyObject*, PyObject* tensor) {
  TensorLook found;
  if (!THPVariable_Check(tensor) || !look(tensor, &found)) Py_RETURN_NONE;
  return Py_BuildValue("nLi", (Py_ssize_t)found.nbytes, (long long)found.offset, found.ndim);
}

// Of a tensor, or a storage's address; null where there is none.
c10::StorageImpl* storage_of(PyObject* given) {
  if (PyLong_Check(given)) return static_cast<c10::StorageImpl*>(PyLong_AsVoidPtr(given));
  if (!THPVariable_Check(given) || !THPVariable_Unpack(given).has_storage()) return nullptr;
  return THPVariable_Unpack(given).storage().unsafeGetStorageImpl();
}

PyObject* written(PyObject*, PyObject* given) {
  if (auto s = storage_of(given)) before_write(s, s->nbytes());
  Py_RETURN_NONE;
}

PyObject* handed_out(PyObject*, PyObject* given) {  // -> the storage's address
  auto s = storage_of(given);
  if (s) hand_out(s);
  return PyLong_FromVoidPtr(s);
}

PyObject* handed_back(PyObject*, PyObject* given) {
  if (auto s = storage_of(given)) hand_back(s);
  Py_RETURN_NONE;
}

PyObject* written_unseen(PyObject*, PyObject*) {  // all of a GPU's: it runs a graph
  drop_out(c10::DeviceType::CUDA);
  Py_RETURN_NONE;
}

PyObject* copies(PyObject*, PyObject*) {  // (kept, dropped to stay within memory)
  uint64_t dropped;
  size_t kept = count_copies(&dropped);
  return Py_BuildValue("nK", (Py_ssize_t)kept, (unsigned long long)dropped);
}

std::vector<int64_t> numbers(PyObject* t) {
  std::vector<int64_t> found;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(t); i++)
    found.push_back(PyLong_AsLongLong(PyTuple_GET_ITEM(t, i)));
  return found;
}

// The storage may have become smaller since.
bool has_all(const at::Tensor& t) {
  int64_t last = t.storage_offset();
  for (int64_t k = 0; k < t.dim(); k++) last += (t.size(k) - 1) * t.stride(k);
  return !t.numel() || (last + 1) * t.itemsize() <= t.storage().nbytes();
}

// What an op wrote on another stream is there.
void wait_for(c10::Device device) {
  if (device.is_cpu()) return;
  c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

// view(storage's number, time, dtype, offset, sizes, strides) -> (a tensor, or None where it is not
// there any more; whether it is as it was then)
PyObject* view(PyObject*, PyObject* args) {
  unsigned long long number, time;
  int dtype;
  long long offset;
  PyObject *sizes, *strides;
  if (!PyArg_ParseTuple(args, "KKiLO!O!", &number, &time, &dtype, &offset, &PyTuple_Type, &sizes,
                        &PyTuple_Type, &strides))
    return nullptr;
  Held held = storage_at(number, time);
  if (!held.storage) return Py_BuildValue("OO", Py_None, Py_False);
  try {
    wait_for(held.storage.device());
    auto options = at::TensorOptions().dtype((c10::ScalarType)dtype).device(held.storage.device());
    at::Tensor t = at::empty({0}, options);
    t.unsafeGetTensorImpl()->set_storage_keep_dtype(held.storage);
    t.unsafeGetTensorImpl()->set_storage_offset(offset);
    t.unsafeGetTensorImpl()->set_sizes_and_strides(numbers(sizes), numbers(strides));
    if (!has_all(t)) return Py_BuildValue("OO", Py_None, Py_False);
    return Py_BuildValue("NO", THPVariable_Wrap(t), held.is_known ? Py_True : Py_False);
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
    return nullptr;
  }
}

PyMethodDef methods[] = {{"api", api, METH_NOARGS, nullptr},
                         {"describe", describe, METH_O, nullptr},
                         {"view", view, METH_VARARGS, nullptr},
                         {"writes", writes, METH_NOARGS, nullptr},
                         {"watch", watch, METH_NOARGS, nullptr},
                         {"written", written, METH_O, nullptr},
                         {"handed_out", handed_out, METH_O, nullptr},
                         {"handed_back", handed_back, METH_O, nullptr},
                         {"written_unseen", written_unseen, METH_NOARGS, nullptr},
                         {"copies", copies, METH_NOARGS, nullptr},
                         {nullptr, nullptr, 0, nullptr}};
PyModuleDef definition = {PyModuleDef_HEAD_INIT, "opstep_past_tensors", nullptr, -1, methods};

}  // namespace

extern "C" __attribute__((visibility("default"))) PyObject* PyInit_opstep_past_tensors() {
  return PyModule_Create(&definition);
}
