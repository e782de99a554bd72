"""NVIDIA GPUs: numba.cuda kernels over raw pointers, compiled once, launched by the driver."""
