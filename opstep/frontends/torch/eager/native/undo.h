// Shows what an op is to write to whoever keeps the past of tensors, before it does.
// Part of watcher.cpp, whose internal names it uses.

#pragma once

#include <ATen/core/enum_tag.h>

#include "threads.h"

namespace opstep {
namespace {

using BeforeWrite = void (*)(const at::Tensor&);
std::atomic<BeforeWrite> before_write{nullptr};

// Collectives say nothing of what they write; views in place write no elements.
void show_writes(BeforeWrite show, const c10::OperatorHandle& op, const torch::jit::Stack* stack) {
  const Facts& facts = facts_of(op);
  bool is_collective = starts_with(facts.name, "c10d::");
  if (facts.writes.empty() && !is_collective) return;
  if (op.hasTag(at::Tag::inplace_view)) return;
  const c10::IValue* given = stack->data() + stack->size() - facts.arguments;
  if (is_collective)
    for (int k = 0; k < facts.arguments; ++k) for_tensors(given[k], show);
  else
    for (int k : facts.writes) for_tensors(given[k], show);
}

PyObject* py_show_writes(PyObject*, PyObject* capsule) {  // None: to nobody
  void* found = capsule == Py_None ? nullptr : PyCapsule_GetPointer(capsule, "opstep.before_write");
  if (PyErr_Occurred()) return nullptr;
  before_write = reinterpret_cast<BeforeWrite>(found);
  Py_RETURN_NONE;
}

}  // namespace
}  // namespace opstep
