// The node of autograd's graph that a thread is at. A file of its own: the header it needs takes
// longer to compile than all others.

#pragma once

#include <cstdint>
#include <string>
#include <typeinfo>

namespace opstep {

struct Node {
  int64_t number = -1;  // in the thread that made it; -1: there is none
  uint64_t thread = 0;
  const std::type_info* type = nullptr;
};

Node current_node();
std::string name_of(const Node& node);  // "torch::autograd::CopySlices"

}  // namespace opstep
