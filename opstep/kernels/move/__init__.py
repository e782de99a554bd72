"""Ops that move elements without computing: shapes, layouts, slices, joins, padding, constants;
and the strided copies behind them, for CPU and CUDA.
"""
