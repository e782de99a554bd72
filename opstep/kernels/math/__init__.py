"""Elementary functions for kernels, written so that LLVM vectorises them: f32 and f64 for the CPU,
`cuda_fast` in the GPU's own terms. No ops here.
"""
