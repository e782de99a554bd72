"""The CPU as a device: kernels compiled by numba and LLVM, streams as worker threads, statistics
and the recording of a run.
"""
