"""NVIDIA's driver: errors, memory, streams, launches, CUDA graphs. Nothing here knows ops or
plans.
"""
