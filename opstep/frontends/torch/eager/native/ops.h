// Facts about ATen ops: what they write, and what they only view.
// Part of watcher.cpp, whose internal names it uses.

#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/flat_hash_map.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace opstep {
namespace {

struct Facts {
  std::string name, overload;  // "aten::add", "Tensor"
  std::vector<int> writes;     // arguments
  std::vector<c10::TypeKind> kinds;  // of the arguments
  int arguments = 0, results = 0;
  bool skipped = false;        // a view, or memory that nothing was written to
  bool moves = false;          // its results have only elements of its operands
  bool lifts = false;          // its result is a literal of the script's text
  bool is_norm = false;        // beside its first result it gives statistics, which are bad where that is
  bool empty = false, reads = false, tests = false, ones_like = false, statistics = false;
  bool compares = false;       // numbers that the script may decide by
};

// A number is asked for; of these PyTorch runs the latter two in inference mode, as they are.
const char* const READS[] = {"_local_scalar_dense", "item", "is_nonzero"};

const char* const COMPARES[] = {"lt", "gt", "le", "ge"};
const char* const TESTS[] = {"isnan", "isinf", "eq", "ne"};  // by which PyTorch asks for NaNs and infinities

// As bad as their operands, so a GPU does not look at their results.
const char* const MOVES[] = {
    "cat", "clone", "index_select", "repeat", "stack", "roll", "flip", "gather", "constant_pad_nd",
    "embedding", "relu", "relu_", "threshold_backward", "max_pool2d_with_indices", "native_dropout", "amax",
    "amin", "index", "slice_backward", "neg"};

template <size_t N>
bool is_among(const std::string& name, const char* const (&names)[N]) {
  return std::any_of(std::begin(names), std::end(names), [&](const char* n) { return name == n; });
}

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
    auto optional = a.real_type()->cast<c10::OptionalType>();
    found->kinds.push_back(optional ? optional->getElementType()->kind() : a.real_type()->kind());
    ++found->arguments;
  }
  found->results = static_cast<int>(schema.returns().size());
  found->statistics = name == "native_batch_norm" || name == "cudnn_batch_norm" || name == "miopen_batch_norm";
  if (found->statistics) found->writes = {3, 4};
  found->lifts = name == "lift_fresh" || name == "lift";
  found->is_norm = name.find("_norm") != std::string::npos && name.find("backward") == std::string::npos &&
                   found->results > 1;
  found->empty = starts_with(name, "empty") || starts_with(name, "new_empty");
  found->reads = is_among(name, READS);
  found->compares = is_among(name, COMPARES);
  found->tests = is_among(name, TESTS);
  found->ones_like = name == "ones_like";
  found->moves = is_among(name, MOVES);
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

}  // namespace
}  // namespace opstep
