// The elements of tensors in host memory: whether they are finite.

#pragma once

#include <ATen/core/Tensor.h>

namespace opstep {

enum Level { FINITE = 0, INFINITE = 1, NAN_ = 2 };

// How floats of a type are laid out.
struct Format {
  int size = 0;   // bytes of a word; 0: the type is not watched
  int words = 1;  // of an element
  uint64_t infinity = 0;
};

Format format_of(c10::ScalarType type);

// Whether elements of this type can be infinite, and are looked at.
bool is_watched(c10::ScalarType type);

// The worst of the elements of a tensor for which `is_readable` holds.
Level level_of(const at::Tensor& t);

// The largest magnitude of the tensor that this thread gave to `level_of` last; 0 where that is not known.
double largest_of(const at::Tensor& t);

// Whether the elements are in host memory: not of a subclass, sparse, quantised or without memory.
bool is_readable(const at::Tensor& t);

}  // namespace opstep
