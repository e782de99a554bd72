#include "nodes.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>

namespace opstep {

Node current_node() {
  auto node = torch::autograd::get_current_node();
  if (!node) return {};
  uint64_t number = node->sequence_nr();  // that of an AccumulateGrad is the largest
  return {static_cast<int64_t>(std::min<uint64_t>(number, INT64_MAX)), node->thread_id()};
}

std::string current_node_name() {
  auto node = torch::autograd::get_current_node();
  return node ? node->name() : "";
}

}  // namespace opstep
