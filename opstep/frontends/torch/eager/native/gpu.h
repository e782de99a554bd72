// Looks at tensors of a GPU: by a kernel on the stream that the op ran on.

#pragma once

#include <ATen/core/Tensor.h>

namespace opstep {

// What Python sets up for a device: the kernel of look.cu, flags in its memory, one in the host's.
struct Gpu {
  void* function = nullptr;
  int32_t* flags = nullptr;    // `count` of them
  int64_t count = 0;
  int32_t* host_flag = nullptr;  // memory of the host that the device can write to
  int64_t next = 0;            // flag that is not in use
};

constexpr int MOST_GPUS = 16;
extern Gpu gpus[MOST_GPUS];

// Whether the elements are in a GPU's memory: not of a subclass, sparse, or without memory.
bool is_on_gpu(const at::Tensor& t);

// Queues a look that raises this flag to 1 for an infinity, to 2 for a NaN. False where it cannot be
// queued, as while the stream is captured into a CUDA graph.
bool queue_look(const at::Tensor& t, int32_t* flag);

// Looks at once: waits for all that the stream has queued. FINITE where it cannot.
int look_now(const at::Tensor& t);

}  // namespace opstep
