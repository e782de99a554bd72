"""Ops that compute each element from the elements at the same position: arithmetic, comparisons,
activations, casts; broadcasting, and the loops that run a scalar function over tensors.
"""
