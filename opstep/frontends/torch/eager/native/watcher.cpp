// Watches ATen ops below autograd, by a boxed fallback of a dispatch key that PyTorch does not use.
//
// A healthy op costs a look at what it wrote, and leaves only its storage in a table of those seen.
// Python is called where a result is not finite, at values that matter (a loss, a number that is
// read), and never else. `native.py` is the Python side, `dispatch.py` the same watcher in Python.

#include <Python.h>

#include <ATen/SequenceNumber.h>
#include <c10/core/GradMode.h>
#include <torch/library.h>

#include "asked.h"
#include "log.h"
#include "ran.h"
#include "undo.h"

namespace opstep {
namespace {

constexpr auto AFTER = c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, KEY);

// ---- an op ----------------------------------------------------------------------------------------

// An operand that an op writes, before it did; `copy` where it was bad.
struct Before {
  int argument;
  Level level = FINITE;
  at::Tensor copy;
};
using Befores = c10::SmallVector<Before, 2>;

// The last number that autograd gave belongs to the op that runs now: it made the node before.
void note_node(Thread& thread, int64_t number, const Facts& facts, const c10::IValue* arguments) {
  thread.last = number;
  if (number <= 0) return;
  bool needs_no_grad = true;
  if (c10::GradMode::is_enabled())
    for (int k = 0; k < facts.arguments && needs_no_grad; ++k)
      for_tensors(arguments[k], [&](const at::Tensor& t) { needs_no_grad &= !t.requires_grad(); });
  thread.stack = stack_now();
  thread.ring->slot(number - 1) = {number - 1, &facts, current_node(), thread.module(), thread.stack, needs_no_grad};
}

Befores before_writing(const Facts& facts, const Arguments& arguments) {
  Befores found;
  for (int k : facts.writes)
    for_tensors(arguments[k], [&](const at::Tensor& t) {
      Before one{k};
      if (self().updating && t.requires_grad()) note_size(t, false);
      if (is_looked_at(t)) {
        const void* storage = storage_of(t);
        bool known = is_seen(storage) && !is_bad(storage);
        if (!known && !is_empty(storage) && (one.level = level_now(t))) {
          c10::impl::ExcludeDispatchKeyGuard unwatched(KEY);
          c10::impl::ExcludeDispatchKeyGuard below(c10::autograd_dispatch_keyset);
          one.copy = t.clone();
        }
      }
      found.push_back(std::move(one));
    });
  return found;
}

void tell_bad(const Facts& facts, const Arguments& arguments, const Befores& before, const at::Tensor& t,
              int index, Level level, bool is_written) {
  Gil gil;
  PyObject* given = given_to(facts, arguments);
  PyObject* old = PyList_New(0);
  for (const Before& b : before) {
    PyObject* copy = b.copy.defined() ? THPVariable_Wrap(b.copy) : none();
    PyObject* item = Py_BuildValue("(iiN)", b.argument, static_cast<int>(b.level), copy);
    PyList_Append(old, item);
    Py_DECREF(item);
  }
  call(on_bad, Py_BuildValue("(ssNNiiNO)", facts.name.c_str(), facts.overload.c_str(), given, THPVariable_Wrap(t),
                             index, static_cast<int>(level), old, is_written ? Py_True : Py_False));
}

void note_unread(const at::Tensor& t) {
  if (!is_watched(t.scalar_type()) || t.unsafeGetTensorImpl()->has_symbolic_sizes_strides()) return;
  if (!t.numel() || t.is_meta() || t._is_zerotensor()) return;
  std::string kind = t.key_set().has(c10::DispatchKey::Python) ? "a subclass of Tensor"
                     : t.layout() != at::kStrided              ? c10::str(t.layout())
                                                               : t.device().str();
  std::lock_guard<std::mutex> lock(unread_mutex);
  ++unread[kind];
}

void look_at(const Facts& facts, const Arguments& arguments, const Befores& before, const at::Tensor& t, int index,
             bool is_written) {
  if (!is_looked_at(t)) {
    if (!is_on_gpu(t)) return note_unread(t);
    bool matters = !(facts.is_norm && (index || is_written)) && self().updating != 1;
    if (matters) log_result(self(), &facts, arguments, t, is_written);
    return;
  }
  const void* storage = storage_of(t);
  Level level = level_now(t);
  if (is_written && self().updating && t.requires_grad()) note_size(t, true);
  add_seen(storage);
  if (level)
    tell_bad(facts, arguments, before, t, index, level, is_written);
  else if (is_written && is_bad(storage))
    call_with(on_healed, t);
  if (is_written) filled(storage);
}

// A value that matters: one that is read or tested, a loss whose backward begins.
void ask(Thread& thread, const Facts& facts, const c10::IValue& given) {
  if (!given.isTensor()) return;
  const at::Tensor& t = given.toTensor();
  if (facts.compares && (t.dim() || !is_looked_at(t) || level_now(t) != NAN_)) return;
  if (is_looked_at(t)) {
    if (is_seen(storage_of(t)) && !is_bad(storage_of(t))) return;
    if (level_now(t)) call_with(facts.tests ? on_test : facts.ones_like ? on_loss : on_read, t);
  } else if (is_on_gpu(t)) {
    log_sink(thread, t, facts.tests ? TESTED_ : facts.reads ? READ_ : LOSS_, nullptr, stack_now());
  }
}

void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  Thread& thread = self();
  BeforeWrite show = before_write.load(std::memory_order_relaxed);
  if (show && !thread.is_within) show_writes(show, op, stack);
  if (!is_active.load(std::memory_order_relaxed) || thread.is_within) {
    c10::impl::ExcludeDispatchKeyGuard guard(KEY);
    return op.redispatchBoxed(keys & AFTER, stack);
  }
  const Facts& facts = facts_of(op);
  op_count.fetch_add(1, std::memory_order_relaxed);
  const c10::IValue* given = stack->data() + stack->size() - facts.arguments;
  int64_t number = at::sequence_number::peek();
  thread.stack = 0;
  if (number != thread.last) note_node(thread, number, facts, given);
  bool looks = is_looking.load(std::memory_order_relaxed), records = is_recorded.load(std::memory_order_relaxed);
  if (looks && (facts.reads || facts.tests || facts.ones_like || facts.compares)) ask(thread, facts, given[0]);
  if (looks && facts.compares) ask(thread, facts, given[1]);
  // The call takes its arguments off the stack; they are needed only if its results are bad.
  Arguments arguments;
  Befores before;
  bool asked = is_asked(facts);
  if (asked || !facts.skipped || (records && facts.reads)) arguments.assign(given, given + facts.arguments);
  if (looks && !facts.skipped && !facts.writes.empty()) before = before_writing(facts, arguments);
  int64_t began = records ? now_ns() : 0;
  {
    c10::impl::ExcludeDispatchKeyGuard guard(KEY);
    op.redispatchBoxed(keys & AFTER, stack);
  }
  Arguments results;
  if (records || asked) results.assign(stack->end() - facts.results, stack->end());
  if (records) note_ran(thread, facts, arguments, results, began);
  if (asked) give_asked(facts, arguments, results);
  if (!looks) return;
  auto for_results = [&](auto f) {
    for (size_t k = stack->size() - facts.results; k < stack->size(); ++k) for_tensors((*stack)[k], f);
  };
  if (facts.empty) for_results(emptied);
  if (facts.skipped) return;
  int index = 0;
  auto look = [&](bool is_written) {
    return [&, is_written](const at::Tensor& t) { look_at(facts, arguments, before, t, index++, is_written); };
  };
  if (facts.writes.empty() || facts.statistics) for_results(look(false));
  index = 0;
  for (int k : facts.writes) for_tensors(arguments[k], look(true));
}

// ---- what Python asks for -------------------------------------------------------------------------

// (bad, healed, read, test, loss, gpu, full, host, whether looks wait, whether it looks)
PyObject* py_start(PyObject*, PyObject* arguments) {
  int looks_wait, looks;
  PyObject* before[] = {on_bad, on_healed, on_read, on_test, on_loss, on_gpu, on_full, on_host};
  if (!PyArg_ParseTuple(arguments, "OOOOOOOOpp", &on_bad, &on_healed, &on_read, &on_test, &on_loss, &on_gpu, &on_full,
                        &on_host, &looks_wait, &looks))
    return nullptr;
  for (PyObject* one : {on_bad, on_healed, on_read, on_test, on_loss, on_gpu, on_full, on_host}) Py_INCREF(one);
  for (PyObject* one : before) Py_XDECREF(one);
  waits = looks_wait;
  is_looking = looks;
  is_recorded = false;
  is_trusted = true;
  is_active = true;
  Py_RETURN_NONE;
}

PyObject* py_record(PyObject*, PyObject* arguments) {  // (met, number, gave): what runs from now on is recorded
  PyObject* before[] = {on_met, on_number, on_gave};
  if (!PyArg_ParseTuple(arguments, "OOO", &on_met, &on_number, &on_gave)) return nullptr;
  for (PyObject* one : {on_met, on_number, on_gave}) Py_INCREF(one);
  for (PyObject* one : before) Py_XDECREF(one);
  std::lock_guard<std::mutex> lock(ran_mutex);
  met.clear();
  ran.clear();
  has_values = false;
  is_recorded = true;
  Py_RETURN_NONE;
}

PyObject* py_values(PyObject*, PyObject* value) {
  has_values = PyObject_IsTrue(value);
  Py_RETURN_NONE;
}

PyObject* py_take_ran(PyObject*, PyObject*) {  // rows of Ran
  std::lock_guard<std::mutex> lock(ran_mutex);
  PyObject* found = PyBytes_FromStringAndSize(reinterpret_cast<const char*>(ran.data()), ran.size() * sizeof(Ran));
  ran.clear();
  return found;
}

PyObject* py_stop(PyObject*, PyObject*) {
  is_active = false;
  std::lock_guard<std::mutex> lock(storages_mutex);
  bad.clear();
  empties.clear();
  sizes.clear();
  bad_count = empty_count = 0;
  for (auto& one : seen) one = nullptr;
  op_count = 0;
  std::lock_guard<std::mutex> other(unread_mutex);
  unread.clear();
  std::lock_guard<std::mutex> third(log_mutex);
  log_.clear();
  logged_sinks.clear();
  logged.clear();
  log_start = log_step = 0;
  Py_RETURN_NONE;
}

PyObject* py_distrust(PyObject*, PyObject*) {  // memory is looked at though it was seen
  is_trusted = false;
  Py_RETURN_NONE;
}

PyObject* py_enter(PyObject*, PyObject* is_watched) {  // this thread
  Thread& thread = self();
  thread.modules.clear();
  thread.updating = 0;
  c10::impl::tls_set_dispatch_key_included(KEY, PyObject_IsTrue(is_watched) || before_write);
  Py_RETURN_NONE;
}

PyObject* py_push(PyObject*, PyObject* module) {
  self().modules.push_back(module);
  Py_RETURN_NONE;
}

PyObject* py_pop(PyObject*, PyObject*) {
  auto& modules = self().modules;
  if (modules.empty()) return PyLong_FromLong(-1);
  modules.pop_back();
  return PyLong_FromSize_t(modules.size());
}

PyObject* py_updating(PyObject*, PyObject* value) {
  self().updating = static_cast<int>(PyLong_AsLong(value));
  updates += self().updating != 0;
  Py_RETURN_NONE;
}

// [(storage, largest magnitude before the last update of it, and after)] of what optimizers write
PyObject* py_sizes(PyObject*, PyObject*) {
  PyObject* found = PyList_New(0);
  std::lock_guard<std::mutex> lock(storages_mutex);
  for (const auto& [storage, one] : sizes) {
    PyObject* item = Py_BuildValue("(Kdd)", reinterpret_cast<unsigned long long>(storage), one.before, one.now);
    PyList_Append(found, item);
    Py_DECREF(item);
  }
  return found;
}

PyObject* id_of(void* module) { return PyLong_FromVoidPtr(module); }

// (module, number of the node, its thread, its name, whether an optimizer is at its step)
PyObject* py_here(PyObject*, PyObject*) {
  Thread& thread = self();
  Node node = current_node();
  return Py_BuildValue("(NLKsO)", id_of(thread.module()), static_cast<long long>(node.number),
                       static_cast<unsigned long long>(node.thread), name_of(node).c_str(),
                       thread.updating ? Py_True : Py_False);
}

PyObject* frames_of(uint32_t number) {
  std::vector<Frame> frames;
  {
    std::lock_guard<std::mutex> lock(stacks_mutex);
    frames = stacks[number];
  }
  PyObject* found = PyTuple_New(frames.size());
  for (size_t k = 0; k < frames.size(); ++k)
    PyTuple_SET_ITEM(found, k, Py_BuildValue("(Oi)", frames[k].code, frames[k].instruction));
  return found;
}

// (thread, 0 for this one, number, whether its number came after its op) -> (frames, module, node, its thread, op)
PyObject* py_made(PyObject*, PyObject* arguments) {
  unsigned long long thread;
  long long number;
  int is_late;
  if (!PyArg_ParseTuple(arguments, "KLp", &thread, &number, &is_late)) return nullptr;
  const Made* made = made_of(thread ? thread : self().id, number, is_late);
  if (!made) Py_RETURN_NONE;
  return Py_BuildValue("(NNLKs)", frames_of(made->stack), id_of(made->module), static_cast<long long>(made->node.number),
                       static_cast<unsigned long long>(made->node.thread), made->facts->name.c_str());
}

PyObject* py_level(PyObject*, PyObject* object) {
  if (!THPVariable_Check(object)) return PyLong_FromLong(FINITE);
  const at::Tensor& t = THPVariable_Unpack(object);
  return PyLong_FromLong(is_looked_at(t) ? level_now(t) : FINITE);
}

// Calls f(index, tensor, what is asked for) for tensors of a list, or their gradients. Gradients are read here:
// `Tensor.grad` in Python would be seen by a script's own modes.
template <class F>
void for_asked(PyObject* tensors, bool of_gradients, F f) {
  for (Py_ssize_t k = 0; k < PyList_GET_SIZE(tensors); ++k) {
    PyObject* object = PyList_GET_ITEM(tensors, k);
    if (!THPVariable_Check(object)) continue;
    const at::Tensor& own = THPVariable_Unpack(object);
    const at::Tensor& t = of_gradients ? own.grad() : own;
    if (t.defined()) f(k, own, t);
  }
}

PyObject* py_bad_among(PyObject*, PyObject* arguments) {  // (tensors, of gradients) -> indices of those not finite
  PyObject* tensors;
  int of_gradients;
  if (!PyArg_ParseTuple(arguments, "O!p", &PyList_Type, &tensors, &of_gradients)) return nullptr;
  PyObject* found = PyList_New(0);
  for_asked(tensors, of_gradients, [&](Py_ssize_t k, const at::Tensor&, const at::Tensor& t) {
    if (!is_looked_at(t) || (is_seen(storage_of(t)) && !is_bad(storage_of(t)))) return;
    if (!level_now(t)) return add_seen(storage_of(t));
    PyObject* index = PyLong_FromSsize_t(k);
    PyList_Append(found, index);
    Py_DECREF(index);
  });
  return found;
}

// (tensors, whether their gradients are meant, what kind of sink they are): those of a GPU
PyObject* py_log_sinks(PyObject*, PyObject* arguments) {
  PyObject* tensors;
  int of_gradients, kind;
  if (!PyArg_ParseTuple(arguments, "O!pi", &PyList_Type, &tensors, &of_gradients, &kind)) return nullptr;
  if (waits) Py_RETURN_NONE;
  HANDLE_TH_ERRORS
  uint32_t stack = 0;
  for_asked(tensors, of_gradients, [&](Py_ssize_t, const at::Tensor& own, const at::Tensor& t) {
    if (!is_on_gpu(t)) return;
    if (!stack) stack = stack_now();
    log_sink(self(), t, kind, own.has_storage() ? storage_of(own) : nullptr, stack);
  });
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// (device, function, flags, their count, a flag of the host)
PyObject* py_set_gpu(PyObject*, PyObject* arguments) {
  int device;
  unsigned long long function, flags, host_flag;
  long long count;
  if (!PyArg_ParseTuple(arguments, "iKKLK", &device, &function, &flags, &count, &host_flag)) return nullptr;
  Gpu& gpu = gpus[device];
  gpu.function = reinterpret_cast<void*>(function);
  gpu.flags = reinterpret_cast<int32_t*>(flags);
  gpu.count = count;
  gpu.host_flag = reinterpret_cast<int32_t*>(host_flag);
  Py_RETURN_NONE;
}

// (the number of the first result, results, sinks, {storage: number}), and begins a new log. A result is
// (op, node, its thread, its name, module, frames, updating, looked at, parameter, literal, step, operands).
PyObject* py_take_log(PyObject*, PyObject*) {
  std::vector<Logged> results;
  std::vector<LoggedSink> sinks;
  long long start;
  {
    std::lock_guard<std::mutex> lock(log_mutex);
    results.swap(log_);
    sinks.swap(logged_sinks);
    start = log_start;
    log_start += results.size();
    if (logged.size() > MOST_LOGGED) logged.clear();
  }
  PyObject* found = PyList_New(0);
  for (const Logged& r : results) {
    PyObject* operands = PyTuple_New(r.operands.size());
    for (size_t k = 0; k < r.operands.size(); ++k) PyTuple_SET_ITEM(operands, k, PyLong_FromLongLong(r.operands[k]));
    PyObject* item = Py_BuildValue("(sLKsNIiiiiLN)", r.facts ? r.facts->name.c_str() : "",
                                   static_cast<long long>(r.node.number), static_cast<unsigned long long>(r.node.thread),
                                   name_of(r.node).c_str(), id_of(r.module), r.stack, r.is_updating, r.is_looked_at, r.is_parameter,
                                   static_cast<int>(r.literal), static_cast<long long>(r.step), operands);
    PyList_Append(found, item);
    Py_DECREF(item);
  }
  PyObject* of_sinks = PyList_New(0);
  for (const LoggedSink& s : sinks) {
    PyObject* item = Py_BuildValue("(LiNINL)", static_cast<long long>(s.result), s.kind, id_of(const_cast<void*>(s.label)),
                                   s.stack, id_of(s.module), static_cast<long long>(s.ops));
    PyList_Append(of_sinks, item);
    Py_DECREF(item);
  }
  return Py_BuildValue("(LNN)", start, found, of_sinks);
}

PyObject* py_step_done(PyObject*, PyObject*) {  // how many results are logged
  std::lock_guard<std::mutex> lock(log_mutex);
  ++log_step;
  return PyLong_FromSize_t(log_.size());
}

PyObject* py_frames(PyObject*, PyObject* number) { return frames_of(static_cast<uint32_t>(PyLong_AsUnsignedLong(number))); }

PyObject* py_within(PyObject*, PyObject* value) {  // this thread: what it asks of PyTorch is not watched
  bool before = self().is_within;
  self().is_within = PyObject_IsTrue(value);
  return PyBool_FromLong(before);
}

PyObject* py_set_bad(PyObject*, PyObject* arguments) {  // (storage, whether it is)
  unsigned long long storage;
  int value;
  if (!PyArg_ParseTuple(arguments, "Kp", &storage, &value)) return nullptr;
  auto p = reinterpret_cast<const void*>(storage);
  std::lock_guard<std::mutex> lock(storages_mutex);
  if (value) bad[p] = true;
  else bad.erase(p);
  bad_count = bad.size();
  Py_RETURN_NONE;
}

PyObject* py_empty_at(PyObject*, PyObject* storage) {  // frames of the call, None where it is not empty
  auto p = reinterpret_cast<const void*>(PyLong_AsUnsignedLongLong(storage));
  uint32_t stack = 0;
  {
    std::lock_guard<std::mutex> lock(storages_mutex);
    auto found = empties.find(p);
    if (found == empties.end() || found->second.storage.expired()) Py_RETURN_NONE;
    stack = found->second.stack;
  }
  return frames_of(stack);
}

PyObject* py_counts(PyObject*, PyObject*) {  // (ops, {kind: results that were not looked at})
  PyObject* kinds = PyDict_New();
  std::lock_guard<std::mutex> lock(unread_mutex);
  for (const auto& [kind, count] : unread) {
    PyObject* number = PyLong_FromLongLong(count);
    PyDict_SetItemString(kinds, kind.c_str(), number);
    Py_DECREF(number);
  }
  return Py_BuildValue("(LN)", static_cast<long long>(op_count), kinds);
}

PyObject* py_register(PyObject*, PyObject*) {  // raises RuntimeError where PyTorch uses the key itself
  static std::unique_ptr<torch::Library> library;
  try {
    if (!library) {
      library = std::make_unique<torch::Library>(torch::Library::IMPL, "_", KEY, __FILE__, __LINE__);
      library->fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
    }
  } catch (const std::exception& error) {
    library.reset();
    PyErr_SetString(PyExc_RuntimeError, error.what());
    return nullptr;
  }
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"show_writes", py_show_writes, METH_O, ""},
    {"register", py_register, METH_NOARGS, ""}, {"start", py_start, METH_VARARGS, ""},
    {"record", py_record, METH_VARARGS, ""},    {"take_ran", py_take_ran, METH_NOARGS, ""},
    {"values", py_values, METH_O, ""},          {"ask", py_ask, METH_VARARGS, ""}, {"looks", py_looks, METH_O, ""},
    {"distrust", py_distrust, METH_NOARGS, ""},
    {"stop", py_stop, METH_NOARGS, ""},         {"enter", py_enter, METH_O, ""},
    {"push", py_push, METH_O, ""},              {"pop", py_pop, METH_NOARGS, ""},
    {"updating", py_updating, METH_O, ""}, {"sizes", py_sizes, METH_NOARGS, ""},      {"here", py_here, METH_NOARGS, ""},
    {"made", py_made, METH_VARARGS, ""},        {"level", py_level, METH_O, ""},
    {"bad_among", py_bad_among, METH_VARARGS, ""}, {"set_bad", py_set_bad, METH_VARARGS, ""},
    {"log_sinks", py_log_sinks, METH_VARARGS, ""}, {"set_gpu", py_set_gpu, METH_VARARGS, ""},
    {"take_log", py_take_log, METH_NOARGS, ""}, {"frames", py_frames, METH_O, ""}, {"step_done", py_step_done, METH_NOARGS, ""}, {"within", py_within, METH_O, ""},
    {"empty_at", py_empty_at, METH_O, ""},      {"counts", py_counts, METH_NOARGS, ""},
    {nullptr, nullptr, 0, nullptr}};
PyModuleDef module = {PyModuleDef_HEAD_INIT, "opstep_watcher", nullptr, -1, methods};

}  // namespace
}  // namespace opstep

extern "C" __attribute__((visibility("default"))) PyObject* PyInit_opstep_watcher() {
  return PyModule_Create(&opstep::module);
}
