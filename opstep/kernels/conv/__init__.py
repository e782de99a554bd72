"""Convolutions: ops, CPU kernels, CUDA kernels (`cuda_*`) and cuDNN (`vendor`). The CUDA kernels
that are matrix products in disguise use the tiles of `matmul`.
"""
