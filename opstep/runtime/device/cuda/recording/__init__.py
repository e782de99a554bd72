"""How a run on a GPU is recorded: times of kernels from CUPTI or events, statistics kernels, and
how both become records of ops.
"""
