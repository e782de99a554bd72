#include "nodes.h"

#include <c10/util/Type.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>

namespace opstep {

Node current_node() {
  auto node = torch::autograd::get_current_node();
  if (!node) return {};
  uint64_t number = node->sequence_nr();  // that of an AccumulateGrad is the largest
  const torch::autograd::Node& found = *node;
  return {static_cast<int64_t>(std::min<uint64_t>(number, INT64_MAX)), node->thread_id(), &typeid(found)};
}

std::string name_of(const Node& node) { return node.type ? c10::demangle(node.type->name()) : ""; }

}  // namespace opstep
