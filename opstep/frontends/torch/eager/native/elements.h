// The elements of tensors in host memory: whether they are finite.

#pragma once

#include <ATen/core/Tensor.h>

namespace opstep {

enum Level { FINITE = 0, INFINITE = 1, NAN_ = 2 };

// Whether elements of this type can be infinite, and are looked at.
bool is_watched(c10::ScalarType type);

// The worst of the elements of a tensor for which `is_readable` holds.
Level level_of(const at::Tensor& t);

// Whether the elements are in host memory: not of a subclass, sparse, quantised or without memory.
bool is_readable(const at::Tensor& t);

}  // namespace opstep
