"""From a Python function to PTX and machine code: the compiler, its cache key, and the intrinsics
that numba.cuda lacks.
"""
