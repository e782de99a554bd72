"""Ops that normalise rows or channels, and losses over them: softmax, layer, batch and group norm,
cross entropy; for CPU and CUDA.
"""
