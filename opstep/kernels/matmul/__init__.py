"""Matrix products: `matmul`, `linear`, `einsum`, their CPU kernels, CUDA kernels (`cuda_gemm*`)
and cuBLASLt (`vendor`).
"""
