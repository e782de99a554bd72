// State of each thread: the modules that it is in, and the ops that made autograd's nodes.
// Part of watcher.cpp, whose internal names it uses.

#pragma once

#include <ATen/record_function.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "nodes.h"
#include "ops.h"

namespace opstep {
namespace {

constexpr size_t NODES = 1 << 16;  // of a thread that are remembered
constexpr int NEAR = 64;           // how far a node's number is from that of its op

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

// The op that made a node of this number in a thread; null where it is not known.
const Made* made_of(uint64_t thread, int64_t number, bool is_late) {
  const Ring* ring;
  {
    std::lock_guard<std::mutex> lock(rings_mutex);
    auto found = rings.find(thread);
    if (found == rings.end()) return nullptr;
    ring = found->second.get();  // which is there to the end
  }
  // An op makes its node before it runs, and may make others before it runs another op; late nodes
  // are made after it.
  int step = is_late ? -1 : 1;
  for (int64_t n = is_late ? number - 1 : number; n >= 0 && std::abs(n - number) < NEAR; n += step) {
    size_t k = static_cast<uint64_t>(n) % NODES;
    if (k >= ring->made.size() || ring->made[k].number != n) continue;
    if (!ring->made[k].is_weak || n == number) return &ring->made[k];
  }
  return nullptr;
}

}  // namespace
}  // namespace opstep
