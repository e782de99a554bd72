"""CUDA kernels run by plain Python, thread by thread: for tests on machines without a GPU, and for
stepping into a kernel.
"""
