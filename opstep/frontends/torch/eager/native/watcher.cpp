// Watches ATen ops below autograd, by a boxed fallback of a dispatch key that PyTorch does not use.
//
// A healthy op costs a look at what it wrote, and leaves only its storage in a table of those seen.
// Python is called where a result is not finite, at values that matter (a loss, a number that is
// read), and never else. `native.py` is the Python side, `dispatch.py` the same watcher in Python.

#include <Python.h>

#include <ATen/SequenceNumber.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <c10/util/flat_hash_map.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "elements.h"
#include "gpu.h"
#include "nodes.h"

namespace opstep {
namespace {

constexpr auto KEY = c10::DispatchKey::Fake;
constexpr auto AFTER = c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, KEY);
constexpr size_t NODES = 1 << 16;    // of a thread that are remembered
constexpr int NEAR = 64;             // how far a node's number is from that of its op
constexpr size_t SEEN = 1 << 14;     // storages, likewise
constexpr size_t MOST_LOGGED = 1 << 20;  // storages of a GPU whose last result is known
constexpr size_t STACKS = 200000;    // different ones
constexpr int FRAMES = 128;          // of a stack

// ---- ops ----------------------------------------------------------------------------------------

struct Facts {
  std::string name, overload;  // "aten::add", "Tensor"
  std::vector<int> writes;     // arguments
  std::vector<bool> is_dtype;  // of the arguments
  int arguments = 0, results = 0;
  bool skipped = false;        // a view, or memory that nothing was written to
  bool moves = false;          // its results have only elements of its operands
  bool lifts = false;          // its result is a literal of the script's text
  bool is_norm = false;        // beside its first result it gives statistics, which are bad where that is
  bool empty = false, reads = false, ones_like = false, statistics = false;
};

// As bad as their operands, so a GPU does not look at their results.
const char* const MOVES[] = {
    "cat", "clone", "index_select", "repeat", "stack", "roll", "flip", "gather", "constant_pad_nd",
    "embedding", "relu", "relu_", "threshold_backward", "max_pool2d_with_indices", "native_dropout", "amax",
    "amin", "index", "slice_backward", "neg"};

bool starts_with(const std::string& text, const char* start) { return text.rfind(start, 0) == 0; }

// As `ops.facts_of`.
std::unique_ptr<Facts> learn(const c10::FunctionSchema& schema) {
  auto found = std::make_unique<Facts>();
  found->name = schema.name();
  found->overload = schema.overload_name();
  std::string name = found->name.substr(found->name.find("::") + 2);
  bool aliases = false;
  for (const auto& r : schema.returns()) aliases |= r.alias_info() != nullptr;
  for (const auto& a : schema.arguments()) {
    if (a.alias_info() && a.alias_info()->isWrite()) found->writes.push_back(found->arguments);
    found->is_dtype.push_back(a.real_type()->kind() == c10::TypeKind::ScalarTypeType);
    ++found->arguments;
  }
  found->results = static_cast<int>(schema.returns().size());
  found->statistics = name == "native_batch_norm" || name == "cudnn_batch_norm" || name == "miopen_batch_norm";
  if (found->statistics) found->writes = {3, 4};
  found->lifts = name == "lift_fresh" || name == "lift";
  found->is_norm = name.find("_norm") != std::string::npos && name.find("backward") == std::string::npos &&
                   found->results > 1;
  found->empty = starts_with(name, "empty") || starts_with(name, "new_empty");
  found->reads = name == "_local_scalar_dense";
  found->ones_like = name == "ones_like";
  found->moves = std::any_of(std::begin(MOVES), std::end(MOVES), [&](const char* m) { return name == m; });
  found->skipped = found->empty || found->reads || name == "detach" || name == "resize_" || name == "set_" ||
                   (aliases && found->writes.empty() && !found->lifts);
  return found;
}

const Facts& facts_of(const c10::OperatorHandle& op) {
  static std::mutex mutex;
  static ska::flat_hash_map<const void*, std::unique_ptr<Facts>> all;
  static thread_local ska::flat_hash_map<const void*, const Facts*> own;
  const void* key = &op.schema();
  auto found = own.find(key);
  if (found != own.end()) return *found->second;
  std::lock_guard<std::mutex> lock(mutex);
  auto& facts = all[key];
  if (!facts) facts = learn(op.schema());
  return *(own[key] = facts.get());
}

template <class F>
void for_tensors(const c10::IValue& v, F f) {
  if (v.isTensor()) {
    if (v.toTensor().defined()) f(v.toTensor());
  } else if (v.isTensorList()) {
    for (const at::Tensor& t : v.toTensorList())
      if (t.defined()) f(t);
  } else if (v.isList()) {
    for (const c10::IValue& e : v.toListRef())
      if (e.isTensor() && e.toTensor().defined()) f(e.toTensor());
  }
}

// ---- stacks -------------------------------------------------------------------------------------

struct Frame {
  PyCodeObject* code;
  int instruction;
};

std::mutex stacks_mutex;
ska::flat_hash_map<uint64_t, uint32_t> stack_numbers;
std::vector<std::vector<Frame>> stacks(1);  // 0: none is known

uint64_t mixed(uint64_t h, uint64_t v) {
  h = (h ^ v) * 0xD6E8FEB86659FD93ull;
  return h ^ (h >> 32);
}

// The number of this thread's stack of Python frames. The code objects are kept, no frames.
uint32_t stack_now() {
  if (!PyGILState_GetThisThreadState()) return 0;  // autograd's own threads have none
  PyGILState_STATE state = PyGILState_Ensure();
  Frame frames[FRAMES];
  int n = 0;
  uint64_t hash = 1469598103934665603ull;
  PyFrameObject* frame = PyEval_GetFrame();
  Py_XINCREF(frame);
  while (frame && n < FRAMES) {
    PyCodeObject* code = PyFrame_GetCode(frame);
    Py_DECREF(code);  // the frame holds it
    frames[n] = {code, PyFrame_GetLasti(frame)};
    hash = mixed(mixed(hash, reinterpret_cast<uint64_t>(code)), frames[n++].instruction);
    PyFrameObject* outer = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = outer;
  }
  Py_XDECREF(frame);
  uint32_t number = 0;
  {
    std::lock_guard<std::mutex> lock(stacks_mutex);
    auto found = stack_numbers.find(hash);
    if (found != stack_numbers.end()) {
      number = found->second;
    } else if (stacks.size() < STACKS) {
      for (int k = 0; k < n; ++k) Py_INCREF(frames[k].code);
      stacks.emplace_back(frames, frames + n);
      number = stack_numbers[hash] = static_cast<uint32_t>(stacks.size() - 1);
    }
  }
  PyGILState_Release(state);
  return number;
}

// ---- threads ------------------------------------------------------------------------------------

// The op that made a node of autograd. `is_weak`: it may have made none, though it had its number.
struct Made {
  int64_t number = -1;
  const Facts* facts = nullptr;
  Node node;
  void* module = nullptr;
  uint32_t stack = 0;
  bool is_weak = false;
};

struct Ring {
  std::vector<Made> made;
  Made& slot(int64_t number) {
    size_t k = static_cast<uint64_t>(number) % NODES;
    if (made.size() <= k) made.resize(std::min(NODES, std::max(k + 1, made.size() * 2)));
    return made[k];
  }
};

std::mutex rings_mutex;
std::unordered_map<uint64_t, std::shared_ptr<Ring>> rings;

struct Thread {
  uint32_t stack = 0;  // of the op that was noted last
  uint64_t id = at::RecordFunction::currentThreadId();
  int64_t last = -1;
  std::shared_ptr<Ring> ring = std::make_shared<Ring>();
  std::vector<void*> modules;
  // 1: an optimizer is at its step, and a GPU's ops are not looked at: its parameters are, after it.
  // 2: it calls a closure, which computes losses.
  int updating = 0;
  bool is_within = false;

  Thread() {
    std::lock_guard<std::mutex> lock(rings_mutex);
    rings[id] = ring;
  }
  void* module() const { return modules.empty() ? nullptr : modules.back(); }
};

Thread& self() {
  static thread_local Thread thread;
  return thread;
}

// ---- storages -----------------------------------------------------------------------------------

const void* storage_of(const at::Tensor& t) { return t.storage().unsafeGetStorageImpl(); }

std::atomic<const void*> seen[SEEN];
std::atomic<const void*>& seen_slot(const void* p) {
  return seen[(reinterpret_cast<uint64_t>(p) >> 4) * 0x9E3779B97F4A7C15ull >> 50];
}
bool is_seen(const void* p) { return seen_slot(p).load(std::memory_order_relaxed) == p; }
void add_seen(const void* p) { seen_slot(p).store(p, std::memory_order_relaxed); }
void drop_seen(const void* p) {
  if (is_seen(p)) seen_slot(p).store(nullptr, std::memory_order_relaxed);
}

// Those that Python knows to be bad, and those that torch.empty gave and nothing has written.
struct Empty {
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;
  uint32_t stack;
};
std::mutex storages_mutex;
ska::flat_hash_map<const void*, bool> bad;
ska::flat_hash_map<const void*, Empty> empties;
std::atomic<int64_t> bad_count{0}, empty_count{0};
size_t sweep_at = 256;

bool is_bad(const void* storage) {
  if (!bad_count.load(std::memory_order_relaxed)) return false;
  std::lock_guard<std::mutex> lock(storages_mutex);
  return bad.count(storage) != 0;
}

bool is_empty(const void* storage) {
  if (!empty_count.load(std::memory_order_relaxed)) return false;
  std::lock_guard<std::mutex> lock(storages_mutex);
  return empties.count(storage) != 0;
}

std::mutex log_mutex;
ska::flat_hash_map<const void*, int64_t> logged;  // of a GPU's, the number of the result written last

void emptied(const at::Tensor& t) {
  if (is_on_gpu(t)) {
    std::lock_guard<std::mutex> lock(log_mutex);
    logged.erase(storage_of(t));
  }
  if (!is_readable(t)) return;
  const void* storage = storage_of(t);
  drop_seen(storage);
  uint32_t stack = stack_now();
  std::lock_guard<std::mutex> lock(storages_mutex);
  if (empties.size() > sweep_at) {
    for (auto it = empties.begin(); it != empties.end();)
      it = it->second.storage.expired() ? empties.erase(it) : std::next(it);
    sweep_at = 2 * empties.size() + 256;
  }
  empties.erase(storage);
  empties.emplace(storage, Empty{t.storage().getWeakStorageImpl(), stack});
  empty_count = empties.size();
}

void filled(const void* storage) {
  if (!empty_count.load(std::memory_order_relaxed)) return;
  std::lock_guard<std::mutex> lock(storages_mutex);
  empties.erase(storage);
  empty_count = empties.size();
}

// ---- Python -------------------------------------------------------------------------------------

std::atomic<bool> is_active{false};
std::atomic<int64_t> op_count{0};
PyObject *on_bad, *on_healed, *on_read, *on_loss;  // callables
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

// ---- an op --------------------------------------------------------------------------------------

using Arguments = c10::SmallVector<c10::IValue, 8>;

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

// Whether every look waits for its op, so that a GPU's tensors are looked at as those of the host.
std::atomic<bool> waits{false};

bool is_looked_at(const at::Tensor& t) {
  return is_readable(t) || (waits.load(std::memory_order_relaxed) && is_on_gpu(t));
}

PyObject *on_gpu, *on_full, *on_host;

void call_with_index(PyObject* callable, int64_t index) {
  Gil gil;
  call(callable, Py_BuildValue("(L)", static_cast<long long>(index)));
}

const Gpu& gpu_of(const at::Tensor& t) {
  const Gpu& gpu = gpus[t.get_device()];
  if (!gpu.function) call_with_index(on_gpu, t.get_device());
  return gpu;
}

Level level_now(const at::Tensor& t) {
  if (!t.is_cuda()) return level_of(t);
  gpu_of(t);
  return static_cast<Level>(look_now(t));
}

Befores before_writing(const Facts& facts, const Arguments& arguments) {
  Befores found;
  for (int k : facts.writes)
    for_tensors(arguments[k], [&](const at::Tensor& t) {
      Before one{k};
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
  PyObject* given = PyList_New(0);
  for (int k = 0; k < facts.arguments; ++k) {
    PyObject* item = to_python(arguments[k], facts.is_dtype[k]);
    PyList_Append(given, item);
    Py_DECREF(item);
  }
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
  if (!is_watched(t.scalar_type()) || t.unsafeGetTensorImpl()->has_symbolic_sizes_strides() || !t.numel() || t.is_meta() || t._is_zerotensor()) return;
  std::string kind = t.key_set().has(c10::DispatchKey::Python) ? "a subclass of Tensor"
                     : t.layout() != at::kStrided              ? c10::str(t.layout())
                                                               : t.device().str();
  std::lock_guard<std::mutex> lock(unread_mutex);
  ++unread[kind];
}

// ---- a GPU's ops ----------------------------------------------------------------------------------

// A result whose look is queued: what its flag means is worked out when it is read, a step later.
struct Logged {
  const Facts* facts;  // null: no op that was watched has written it
  Node node;
  void* module;
  uint32_t stack;
  bool is_updating, is_looked_at, is_parameter;
  Level literal;
  int64_t step;  // of optimizers
  c10::SmallVector<int64_t, 6> operands;  // numbers of results
};

// A value that matters. `label`: the storage of the parameter that it belongs to.
struct LoggedSink {
  int64_t result;
  int kind;
  const void* label;
  uint32_t stack;
  void* module;
};

std::vector<Logged> log_;
std::vector<LoggedSink> logged_sinks;
int64_t log_step = 0;
int64_t log_start = 0;                            // the number of the first that is logged
enum SinkKind { LOSS_ = 0, READ_ = 1, PARAMETER_ = 3 };  // as in gpu.py

Level literal_of(const c10::IValue& v) {
  auto level = [](double d) { return std::isnan(d) ? NAN_ : std::isinf(d) ? INFINITE : FINITE; };
  return v.isDouble() ? level(v.toDouble()) : FINITE;
}

// The number of the result; a segment of the log is over where there are no more flags.
int64_t log_result(Thread& thread, const Facts* facts, const Arguments& arguments, const at::Tensor& t, bool is_written) {
  const Gpu& gpu = gpu_of(t);
  if (static_cast<int64_t>(log_.size()) >= gpu.count) call_with_index(on_full, t.get_device());
  if (!thread.stack) thread.stack = stack_now();
  Logged one{facts, current_node(), thread.module(), thread.stack, thread.updating != 0, false, false, FINITE, log_step, {}};
  for (const auto& v : arguments) {
    one.literal = std::max(one.literal, literal_of(v));
    for_tensors(v, [&](const at::Tensor& operand) {
      if (!is_readable(operand) || !is_bad(storage_of(operand))) return;
      auto storage = reinterpret_cast<int64_t>(storage_of(operand));
      call_with_index(on_host, storage);  // its births are known now, and it may be gone later
      one.operands.push_back(-storage);
    });
  }
  std::lock_guard<std::mutex> lock(log_mutex);
  for (const auto& v : arguments) {
    for_tensors(v, [&](const at::Tensor& operand) {
      auto found = operand.has_storage() ? logged.find(storage_of(operand)) : logged.end();
      if (found != logged.end() && one.operands.size() < 6) one.operands.push_back(found->second);
    });
  }
  if (is_written) {
    const at::TensorBase& base = t.is_view() ? t._base() : t;
    one.is_parameter = base.requires_grad() && base.is_leaf();
  }
  int64_t index = log_.size();
  if (facts && facts->lifts) one.literal = std::max(one.literal, INFINITE);
  one.is_looked_at = !(facts && facts->moves) && queue_look(t, gpu.flags + index);
  log_.push_back(std::move(one));
  return logged[storage_of(t)] = log_start + index;
}

void log_sink(Thread& thread, const at::Tensor& t, int kind, const void* label, uint32_t stack) {
  int64_t number = -1;
  {
    std::lock_guard<std::mutex> lock(log_mutex);
    auto found = logged.find(storage_of(t));
    if (found != logged.end()) number = found->second;
  }
  thread.stack = stack;
  if (number < 0 || kind == PARAMETER_) number = log_result(thread, nullptr, {}, t, false);
  std::lock_guard<std::mutex> lock(log_mutex);
  logged_sinks.push_back({number, kind, label, stack, thread.module()});
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
  add_seen(storage);
  if (level)
    tell_bad(facts, arguments, before, t, index, level, is_written);
  else if (is_written && is_bad(storage))
    call_with(on_healed, t);
  if (is_written) filled(storage);
}

// A value that matters: a number that is read, a loss whose backward begins.
void ask(Thread& thread, const Facts& facts, const c10::IValue& given) {
  if (!given.isTensor()) return;
  const at::Tensor& t = given.toTensor();
  if (is_looked_at(t)) {
    if (is_seen(storage_of(t)) && !is_bad(storage_of(t))) return;
    if (level_now(t)) call_with(facts.reads ? on_read : on_loss, t);
  } else if (is_on_gpu(t)) {
    log_sink(thread, t, facts.reads ? READ_ : LOSS_, nullptr, stack_now());
  }
}

void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  Thread& thread = self();
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
  if (facts.reads || facts.ones_like) ask(thread, facts, given[0]);
  // The call takes its arguments off the stack; they are needed only if its results are bad.
  Arguments arguments;
  Befores before;
  if (!facts.skipped) {
    arguments.assign(given, given + facts.arguments);
    if (!facts.writes.empty()) before = before_writing(facts, arguments);
  }
  {
    c10::impl::ExcludeDispatchKeyGuard guard(KEY);
    op.redispatchBoxed(keys & AFTER, stack);
  }
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

PyObject* py_start(PyObject*, PyObject* arguments) {  // (bad, healed, read, loss, gpu, full, host, whether looks wait)
  int looks_wait;
  if (!PyArg_ParseTuple(arguments, "OOOOOOOp", &on_bad, &on_healed, &on_read, &on_loss, &on_gpu, &on_full, &on_host,
                        &looks_wait))
    return nullptr;
  for (PyObject* one : {on_bad, on_healed, on_read, on_loss, on_gpu, on_full, on_host}) Py_INCREF(one);
  waits = looks_wait;
  is_active = true;
  Py_RETURN_NONE;
}

PyObject* py_stop(PyObject*, PyObject*) {
  is_active = false;
  std::lock_guard<std::mutex> lock(storages_mutex);
  bad.clear();
  empties.clear();
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

PyObject* py_enter(PyObject*, PyObject* is_watched) {  // this thread
  Thread& thread = self();
  thread.modules.clear();
  thread.updating = 0;
  c10::impl::tls_set_dispatch_key_included(KEY, PyObject_IsTrue(is_watched));
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
  Py_RETURN_NONE;
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
  std::shared_ptr<Ring> ring;
  {
    std::lock_guard<std::mutex> lock(rings_mutex);
    auto found = rings.find(thread ? thread : self().id);
    if (found != rings.end()) ring = found->second;
  }
  // An op makes its node before it runs, and may make others before it runs another op; late nodes
  // are made after it.
  int step = is_late ? -1 : 1;
  for (long long n = is_late ? number - 1 : number; ring && n >= 0 && std::abs(n - number) < NEAR; n += step) {
    size_t k = static_cast<uint64_t>(n) % NODES;
    if (k >= ring->made.size() || ring->made[k].number != n) continue;
    const Made& made = ring->made[k];
    if (made.is_weak && n != number) continue;
    return Py_BuildValue("(NNLKs)", frames_of(made.stack), id_of(made.module), static_cast<long long>(made.node.number),
                         static_cast<unsigned long long>(made.node.thread), made.facts->name.c_str());
  }
  Py_RETURN_NONE;
}

PyObject* py_level(PyObject*, PyObject* object) {
  if (!THPVariable_Check(object)) return PyLong_FromLong(FINITE);
  const at::Tensor& t = THPVariable_Unpack(object);
  return PyLong_FromLong(is_looked_at(t) ? level_now(t) : FINITE);
}

// (tensors, whether their gradients are asked for) -> indices of those that are not finite. Gradients
// are read here: `Tensor.grad` in Python would be seen by a script's own modes.
PyObject* py_bad_among(PyObject*, PyObject* arguments) {
  PyObject* tensors;
  int of_gradients;
  if (!PyArg_ParseTuple(arguments, "O!p", &PyList_Type, &tensors, &of_gradients)) return nullptr;
  PyObject* found = PyList_New(0);
  for (Py_ssize_t k = 0; k < PyList_GET_SIZE(tensors); ++k) {
    PyObject* object = PyList_GET_ITEM(tensors, k);
    if (!THPVariable_Check(object)) continue;
    const at::Tensor& own = THPVariable_Unpack(object);
    const at::Tensor& t = of_gradients ? own.grad() : own;
    if (!t.defined() || !is_looked_at(t)) continue;
    const void* storage = storage_of(t);
    if (is_seen(storage) && !is_bad(storage)) continue;
    if (level_now(t)) {
      PyObject* index = PyLong_FromSsize_t(k);
      PyList_Append(found, index);
      Py_DECREF(index);
    } else {
      add_seen(storage);
    }
  }
  return found;
}

// (tensors, whether their gradients are meant, what kind of sink they are): those of a GPU
PyObject* py_log_sinks(PyObject*, PyObject* arguments) {
  PyObject* tensors;
  int of_gradients, kind;
  if (!PyArg_ParseTuple(arguments, "O!pi", &PyList_Type, &tensors, &of_gradients, &kind)) return nullptr;
  if (waits) Py_RETURN_NONE;
  HANDLE_TH_ERRORS
  uint32_t stack = stack_now();
  for (Py_ssize_t k = 0; k < PyList_GET_SIZE(tensors); ++k) {
    PyObject* object = PyList_GET_ITEM(tensors, k);
    if (!THPVariable_Check(object)) continue;
    const at::Tensor& own = THPVariable_Unpack(object);
    const at::Tensor& t = of_gradients ? own.grad() : own;
    if (is_on_gpu(t)) log_sink(self(), t, kind, own.has_storage() ? storage_of(own) : nullptr, stack);
  }
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
    PyObject* item = Py_BuildValue("(LiNIN)", static_cast<long long>(s.result), s.kind, id_of(const_cast<void*>(s.label)),
                                   s.stack, id_of(s.module));
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
    {"register", py_register, METH_NOARGS, ""}, {"start", py_start, METH_VARARGS, ""},
    {"stop", py_stop, METH_NOARGS, ""},         {"enter", py_enter, METH_O, ""},
    {"push", py_push, METH_O, ""},              {"pop", py_pop, METH_NOARGS, ""},
    {"updating", py_updating, METH_O, ""},      {"here", py_here, METH_NOARGS, ""},
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
