// What is known of storages: looked at, bad, or memory that nothing has written.
// Part of watcher.cpp, whose internal names it uses.

#pragma once

#include <c10/util/flat_hash_map.h>

#include <atomic>
#include <mutex>

#include "elements.h"
#include "gpu.h"
#include "stacks.h"

namespace opstep {
namespace {

constexpr size_t SEEN = 1 << 14;  // that are remembered

const void* storage_of(const at::Tensor& t) { return t.storage().unsafeGetStorageImpl(); }

std::atomic<const void*> seen[SEEN];
std::atomic<const void*>& seen_slot(const void* p) {
  return seen[(reinterpret_cast<uint64_t>(p) >> 4) * 0x9E3779B97F4A7C15ull >> 50];
}
// Code that Inductor or opstep compiled gets memory without an op, and may get that of one that was seen.
std::atomic<bool> is_trusted{true};
bool is_seen(const void* p) {
  return is_trusted.load(std::memory_order_relaxed) && seen_slot(p).load(std::memory_order_relaxed) == p;
}
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

// The largest magnitude of a parameter, before and after the last update that wrote it.
struct Size {
  int64_t update = -17;
  double before = 0, now = 0;
};
ska::flat_hash_map<const void*, Size> sizes;
std::atomic<int64_t> updates{0};  // of optimizers

// Before an update writes it, or after, when it has just been looked at.
void note_size(const at::Tensor& t, bool is_written) {
  if (!is_readable(t)) return;
  std::lock_guard<std::mutex> lock(storages_mutex);
  Size& one = sizes[storage_of(t)];
  // There may be several optimizers; what was written long ago may have been another tensor.
  bool is_known = updates - one.update <= 16;
  if (!is_written && is_known) return;
  if (one.update != updates) one.before = is_known ? one.now : 0;
  if (!is_written) level_of(t);
  one.update = is_written ? updates.load() : updates - 1;
  one.now = largest_of(t);
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

}  // namespace
}  // namespace opstep
