"""CUDA kernels, for the `cuda` of ops: plain functions that are compiled when they are first
needed.
"""
