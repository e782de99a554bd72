// What the recorder asks of tensors: found by tensors.cpp and storages.cpp, which alone need
// PyTorch's headers.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

struct TensorLook {
  const void* data;  // of the whole storage
  size_t nbytes;
  void* storage;
  int64_t offset;
  int ndim;
  const int64_t *sizes, *strides;
  int dtype;
  bool is_cpu, needs_grad;
};

// What both sides know: ops write on any thread, without Python's lock.
struct Shared {
  std::atomic<uint64_t> now{0};     // the event at hand
  std::atomic<bool> is_hot{false};  // its line is
  std::atomic<size_t> bytes{0};     // kept of storages
  std::atomic<size_t> room{0};      // how many there may be
  std::atomic<size_t> memory{0};    // for all that is kept
  std::atomic<bool> is_short{false};  // they have less than a quarter of it, and need more
  std::atomic<uint64_t> period{0};  // a step of training, or as many lines
};

struct TensorApi {
  bool (*look)(void* object, TensorLook* found);  // false: it has no plain storage
  bool (*follows)(void* storage);     // whether all that is written to it is seen
  uint64_t (*note)(void* storage);    // its number, for a node that has it from now on
  void (*release)(uint64_t number);   // by a node that has it no more
  void (*trim)(uint64_t oldest);      // forgets what was before an event
  void (*recount)(uint64_t number);   // the tensor of a node is about to die
  void (*recount_some)();
  Shared* shared;
};
