"""Parts of a tensor by the last axis of an index, which has a number for each leading axis: read by
gather_nd, written by scatter_nd and scatter_nd_add.

An index below 0 counts from the end; one that is out of range reads NaN (for integers, the largest
value), and what it writes is dropped. Several writes to one element are applied in row-major order.
"""

from __future__ import annotations

from opstep.kernels.pick.picking import Pick, Put, add_elements, replace_element
from opstep.kernels.pick.reach import axes_in_parts, by_parts, parts
from opstep.kernels.rules.faults import GATHER_ND
from opstep.kernels.rules.literals import check_value
from opstep.runtime.ir.op import Mismatch, Traits


class gather_nd(Pick):
    """The slices of x selected by the last axis of `index`, which has one number for each leading
    axis of x.

    The first `batch` axes are shared by x and index and not indexed. An index out of range reads
    `missing`, if set.
    """

    signature = "gather_nd(x: T, index: X, *, batch: int = 0, missing: number = none)"
    source = "ATen index.Tensor with stacked indices, ONNX GatherND"
    faults = GATHER_ND
    reach = staticmethod(parts)
    selection = staticmethod(by_parts)

    def infer(x, index, *, batch, missing):
        check_value(missing or 0, x.dtype, "missing")
        depth = axes_in_parts(x, index, batch)
        return x.with_shape((*index.shape[:-1], *x.shape[batch + depth :]))

    def grad(g, operands, results, grads, *, batch, missing):
        x, index = operands
        return g.scatter_nd_add(g.zeros_like(x), index, grads[0], batch=batch), None


class ScatterParts(Put):
    """Base: parts of y at the places that the last axis of index names meet the parts of source."""

    reach = staticmethod(parts)
    selection = staticmethod(by_parts)
    picks_up = "gather_nd"

    def infer(x, index, source, *, batch):
        depth = axes_in_parts(x, index, batch)
        wanted = x.with_shape((*index.shape[:-1], *x.shape[batch + depth :]))
        if source.shape != wanted.shape:
            raise Mismatch(f"{source} does not fit: {index} puts {wanted} into {x}", 2)
        return x


class scatter_nd(ScatterParts):
    """x with y[index[p]] = source[p] for each p; indices are those of `gather_nd`.

    The gradient with respect to source assumes that no two slices have the same index.
    """

    signature = "scatter_nd(x: T, index: X, source: T, *, batch: int = 0)"
    source = "torch.index_put, ONNX ScatterND"
    traits = Traits(moves=True, overwrites=True)
    combine = staticmethod(replace_element)


class scatter_nd_add(ScatterParts):
    """x with y[index[p]] += source[p] for each p; indices are those of `gather_nd`."""

    signature = "scatter_nd_add(x: N, index: X, source: N, *, batch: int = 0)"
    source = 'torch.index_put(accumulate=True), ONNX ScatterND(reduction="add")'
    combine = staticmethod(add_elements)

    def flops(x, index, source, *, batch):
        return source.size
