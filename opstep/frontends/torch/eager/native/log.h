// A GPU's results, whose looks are queued: what their flags mean is worked out when they are read.
// Part of watcher.cpp, whose internal names it uses.

#pragma once

#include <atomic>
#include <cmath>
#include <mutex>
#include <vector>

#include "calls.h"
#include "gpu.h"
#include "storages.h"

namespace opstep {
namespace {

constexpr size_t MOST_LOGGED = 1 << 20;  // storages whose last result is known

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
  int64_t ops;  // that had run
};

std::vector<Logged> log_;
std::vector<LoggedSink> logged_sinks;
int64_t log_step = 0;
int64_t log_start = 0;                            // the number of the first that is logged
enum SinkKind { LOSS_ = 0, READ_ = 1, PARAMETER_ = 3, TESTED_ = 8 };  // as in gpu.py

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
    if (facts && facts->lifts) break;  // its memory is new, and its address may be that of a freed one
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
  logged_sinks.push_back({number, kind, label, stack, thread.module(), op_count});
}

}  // namespace
}  // namespace opstep
