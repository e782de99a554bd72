// Compiled with -O3: the loops below must be vectorised. A cached file may be loaded on another
// processor, so the vector width is chosen when it is loaded.

#include "elements.h"

#include <algorithm>
#include <bit>

namespace opstep {
namespace {

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define FOR_EACH_PROCESSOR __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FOR_EACH_PROCESSOR
#endif

// The largest word without its sign: floats are ordered as their bits are.
FOR_EACH_PROCESSOR uint16_t largest(const uint16_t* p, int64_t n) {
  uint16_t most = 0;
  for (int64_t i = 0; i < n; ++i) most = std::max<uint16_t>(most, p[i] & 0x7fff);
  return most;
}
FOR_EACH_PROCESSOR uint32_t largest(const uint32_t* p, int64_t n) {
  uint32_t most = 0;
  for (int64_t i = 0; i < n; ++i) most = std::max(most, p[i] & 0x7fffffffu);
  return most;
}
FOR_EACH_PROCESSOR uint64_t largest(const uint64_t* p, int64_t n) {
  uint64_t most = 0;
  for (int64_t i = 0; i < n; ++i) most = std::max<uint64_t>(most, p[i] & 0x7fffffffffffffffull);
  return most;
}

thread_local uint64_t latest = 0;  // the largest word of those looked at

Level look(const char* p, int64_t elements, const Format& format) {
  int64_t n = elements * format.words;
  uint64_t most = format.size == 4   ? largest(reinterpret_cast<const uint32_t*>(p), n)
                  : format.size == 2 ? largest(reinterpret_cast<const uint16_t*>(p), n)
                                     : largest(reinterpret_cast<const uint64_t*>(p), n);
  latest = most;
  return most > format.infinity ? NAN_ : most == format.infinity ? INFINITE : FINITE;
}

// The runs of the innermost axis of a tensor that has gaps.
Level look_at_runs(const at::Tensor& t, const char* p, const Format& format) {
  auto sizes = t.sizes(), strides = t.strides();
  int64_t axes = t.dim(), bytes = t.element_size();
  int64_t length = axes ? sizes[axes - 1] : 1, stride = axes ? strides[axes - 1] : 1;
  c10::SmallVector<int64_t, 8> at(axes, 0);
  Level worst = FINITE;
  while (true) {
    int64_t offset = 0;
    for (int64_t k = 0; k + 1 < axes; ++k) offset += at[k] * strides[k];
    const char* run = p + offset * bytes;
    if (stride == 1) {
      worst = std::max(worst, look(run, length, format));
    } else {
      for (int64_t i = 0; i < length; ++i)
        worst = std::max(worst, look(run + i * stride * bytes, 1, format));
    }
    int64_t k = axes - 2;
    for (; k >= 0; --k) {
      if (++at[k] < sizes[k]) break;
      at[k] = 0;
    }
    if (k < 0) return worst;
  }
}

}  // namespace

Format format_of(c10::ScalarType type) {
  switch (type) {
    case at::kHalf: return {2, 1, 0x7c00};
    case at::kBFloat16: return {2, 1, 0x7f80};
    case at::kFloat: return {4, 1, 0x7f800000};
    case at::kComplexFloat: return {4, 2, 0x7f800000};
    case at::kDouble: return {8, 1, 0x7ff0000000000000ull};
    case at::kComplexDouble: return {8, 2, 0x7ff0000000000000ull};
    default: return {};
  }
}

bool is_watched(c10::ScalarType type) { return format_of(type).size != 0; }

bool is_readable(const at::Tensor& t) {
  if (!t.defined() || !is_watched(t.scalar_type())) return false;
  auto keys = t.key_set();
  if (keys.has(c10::DispatchKey::Python) || !keys.has_all(c10::DispatchKeySet(c10::DispatchKey::CPU)))
    return false;
  return t.has_storage() && t.numel() && t.const_data_ptr() != nullptr;
}

double largest_of(const at::Tensor& t) {
  if (!t.is_contiguous()) return 0;
  switch (t.scalar_type()) {
    case at::kHalf: return c10::Half(static_cast<uint16_t>(latest), c10::Half::from_bits());
    case at::kBFloat16: return c10::BFloat16(static_cast<uint16_t>(latest), c10::BFloat16::from_bits());
    case at::kFloat: return std::bit_cast<float>(static_cast<uint32_t>(latest));
    case at::kDouble: return std::bit_cast<double>(latest);
    default: return 0;
  }
}

Level level_of(const at::Tensor& t) {
  Format format = format_of(t.scalar_type());
  auto p = static_cast<const char*>(t.const_data_ptr());
  if (t.is_contiguous() || t.is_non_overlapping_and_dense()) return look(p, t.numel(), format);
  return look_at_runs(t, p, format);
}

}  // namespace opstep
