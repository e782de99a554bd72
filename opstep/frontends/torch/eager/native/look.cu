// Looks at one tensor: the largest word without its sign says whether all elements are finite, for
// floats are ordered as their bits are. Compiled by NVRTC for the device at hand.

struct Look {
  unsigned long long pointer, words;  // words of `size` bytes
  int size, axes;                     // axes 0: the words follow each other
  unsigned long long infinity;
  int* flag;
  long long sizes[8], strides[8];     // in words, of a tensor with gaps
};

__device__ unsigned long long word_at(const Look& look, unsigned long long i) {
  if (look.axes) {
    unsigned long long offset = 0;
    for (int k = look.axes - 1; k >= 0; --k) {
      offset += (i % look.sizes[k]) * look.strides[k];
      i /= look.sizes[k];
    }
    i = offset;
  }
  if (look.size == 2) return ((const unsigned short*)look.pointer)[i] & 0x7fffu;
  if (look.size == 4) return ((const unsigned*)look.pointer)[i] & 0x7fffffffu;
  return ((const unsigned long long*)look.pointer)[i] & 0x7fffffffffffffffull;
}

extern "C" __global__ void __launch_bounds__(256) opstep_look(const Look look) {
  unsigned long long most = 0;
  unsigned long long i = blockIdx.x * 256ull + threadIdx.x, step = gridDim.x * 256ull;
  if (!look.axes && look.size != 8 && look.pointer % 16 == 0) {
    unsigned long long n = look.words * look.size / 16;
    unsigned wide = 0;
    const uint4* p = (const uint4*)look.pointer;
    if (look.size == 4) {
#pragma unroll 4
      for (unsigned long long k = i; k < n; k += step) {
        uint4 v = p[k];
        wide = max(max(wide, v.x & 0x7fffffffu), max(v.y & 0x7fffffffu, max(v.z & 0x7fffffffu, v.w & 0x7fffffffu)));
      }
      most = wide;
    } else {
#pragma unroll 4
      for (unsigned long long k = i; k < n; k += step) {
        uint4 v = p[k];
        wide = __vmaxu2(wide, __vmaxu2(__vmaxu2(v.x & 0x7fff7fffu, v.y & 0x7fff7fffu),
                                       __vmaxu2(v.z & 0x7fff7fffu, v.w & 0x7fff7fffu)));
      }
      most = max(wide & 0xffffu, wide >> 16);
    }
    i += n * 16 / look.size;
  }
  for (; i < look.words; i += step) most = max(most, word_at(look, i));
  if (most >= look.infinity) atomicMax(look.flag, most > look.infinity ? 2 : 1);
}
