// The node of autograd's graph that a thread is at. A file of its own: the header it needs takes
// longer to compile than all others.

#pragma once

#include <cstdint>
#include <string>

namespace opstep {

struct Node {
  int64_t number = -1;  // in the thread that made it; -1: there is none
  uint64_t thread = 0;
};

Node current_node();
std::string current_node_name();

}  // namespace opstep
