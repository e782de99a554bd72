"""Writing elements by index: scatter, scatter_add, scatter_nd.

An index below 0 counts from the end; writes with an index out of range are dropped. Several writes
to one element are applied in row-major order: the last one wins, or all add up, with the same bits
in every run.
"""

from __future__ import annotations

import numpy as np

from opstep.kernels.pick.picking import PickGrad, Put, add_elements, replace_element
from opstep.kernels.pick.reach import aligned, check_aligned, elements, written_at
from opstep.runtime.ir.op import Mismatch, Traits


class Scatter(Put):
    """Base: y is x, where y[index[i, j, k], j, k] (for axis 0) meets source[i, j, k]."""

    reach = staticmethod(elements)
    selection = staticmethod(aligned)
    picks_up = "gather_elements"

    def infer(x, index, source, *, axis, **attrs):
        check_aligned(x, index, axis)
        if source.shape != index.shape:
            raise Mismatch(f"{source} does not hold an element for each index of {index}", 2)
        return x


class scatter(Scatter):
    """x with y[index[i, j, k], j, k] = source[i, j, k] (for axis 0, and so on).

    The gradient with respect to source assumes that no two elements have the same index.
    """

    signature = "scatter(x: T, index: X, source: T, *, axis: int = 0)"
    source = "torch.scatter, ONNX ScatterElements"
    traits = Traits(moves=True, overwrites=True)
    combine = staticmethod(replace_element)


class scatter_add(Scatter):
    """x with y[index[i, j, k], j, k] += source[i, j, k] (for axis 0, and so on)."""

    signature = "scatter_add(x: N, index: X, source: N, *, axis: int = 0)"
    source = 'torch.scatter_add, ONNX ScatterElements(reduction="add")'
    combine = staticmethod(add_elements)

    def flops(x, index, source, *, axis):
        return index.size


class gather_elements_grad(PickGrad):
    """The gradient of gather_elements with respect to x, whose shape is an attribute: scatter_add
    to zeros.
    """

    signature = "gather_elements_grad(gy: F, index: X, *, shape: dims, axis: int = 0)"

    def infer(gy, index, *, shape, axis):
        x = gy.with_shape(shape)
        check_aligned(x, index, axis)
        if gy.shape != index.shape:
            raise Mismatch(f"{gy} does not hold an element for each index of {index}", 1)
        return x

    def oracle(gy, index, *, shape, axis):
        return written_at(add_elements, np.zeros(shape), aligned(shape, index, axis), gy)

    @staticmethod
    def reach(of, index, *, shape, axis):
        return elements(of, index, axis)

    def grad(g, operands, results, grads, *, shape, axis):
        return g.gather_elements(grads[0], operands[1], axis=axis, missing=0), None
