"""Reductions and scans over axes: ops, the machinery that cuts long sums, and the folds that say
what is done with an element; for CPU and CUDA.
"""
