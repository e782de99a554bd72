"""Ops that choose elements by index or by order: gather, scatter, sort, top_k; for CPU and CUDA."""
