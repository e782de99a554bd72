"""Matrix products and convolutions of NVIDIA's libraries, beside our own kernels, and NCCL.

They are optional (extra `vendor`), loaded when first asked for and called through ctypes: of each
library a dozen functions are used. Whatever a call needs is chosen when it is prepared, so that
running it neither allocates nor waits, and it can be captured into a CUDA graph.
"""
