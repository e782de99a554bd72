"""NumPy's advanced indexing: several index tensors at once, and writes to what they select.

An index below 0 counts from the end. A place that does not exist reads NaN (for integers, the
largest value), or `missing`; what is written there is dropped. Several writes to one element are
applied in row-major order of the indices.
"""

from __future__ import annotations

from opstep.kernels.pick.picking import Pick, Put, add_elements, replace_element
from opstep.kernels.pick.reach import boxed, boxes, indexed_shape
from opstep.kernels.pointwise.broadcast import broadcast_shape
from opstep.kernels.rules.faults import INDEX
from opstep.kernels.rules.literals import check_value
from opstep.runtime.ir.op import Mismatch, Traits


class index(Pick):
    """The elements of x that several index tensors select together, as x[i, j] or x[:, i, :, j].

    The indices broadcast to one shape; the first is for the first of `axes` (by default 0, 1, …),
    and so on. Their shape replaces the axes where these are neighbours in x, else it comes first.
    An index out of range reads `missing`, if set.
    """

    signature = "index(x: T, indices: X*, *, axes: ints = none, missing: number = none)"
    source = "torch's x[i, j] (ATen index.Tensor), numpy's advanced indexing"
    faults = INDEX
    reach = staticmethod(boxes)
    selection = staticmethod(boxed)

    def infer(x, *indices, axes, missing):
        check_value(missing or 0, x.dtype, "missing")
        return x.with_shape(indexed_shape(x, indices, axes))

    def grad(g, operands, results, grads, *, axes, missing):
        x, *indices = operands
        gx = g.index_put_add(g.zeros_like(x), grads[0], *indices, axes=axes)
        return gx, *[None] * len(indices)


class IndexPut(Put):
    """Base: what `index` selects of x meets `source`."""

    reach = staticmethod(boxes)
    selection = staticmethod(boxed)

    @staticmethod
    def taken(x, source, *indices):
        return x, source, indices

    def infer(x, source, *indices, axes):
        selected = x.with_shape(indexed_shape(x, indices, axes))
        if broadcast_shape(selected, source) != selected.shape:
            raise Mismatch(f"{source} does not broadcast to the {selected} that are selected", 1)
        return x

    @classmethod
    def grad(cls, g, operands, results, grads, *, axes):
        x, source, *indices = operands
        (gy,) = grads
        by_source = g.sum_to(g.index(gy, *indices, axes=axes, missing=0.0), source)
        if cls.combine is replace_element:
            gy = g.index_put(gy, 0.0, *indices, axes=axes)
        by_x = g.to_dtype(gy, x.dtype) if hasattr(x, "dtype") else None
        return by_x, by_source, *[None] * len(indices)


class index_put(IndexPut):
    """x with the elements that `index` selects replaced by `source`, which broadcasts to them.

    The gradient with respect to source assumes that no element is selected twice.
    """

    signature = "index_put(x: T, source: T, indices: X*, *, axes: ints = none)"
    source = "torch.index_put, torch.index_copy and index_fill, numpy's x[i, j] = source"
    traits = Traits(moves=True, overwrites=True)
    combine = staticmethod(replace_element)


class index_put_add(IndexPut):
    """x with `source` added to the elements that `index` selects, as often as they are selected.

    `source` broadcasts to what is selected.
    """

    signature = "index_put_add(x: N, source: N, indices: X*, *, axes: ints = none)"
    source = "torch.index_put(accumulate=True), torch.index_add, numpy.add.at"
    combine = staticmethod(add_elements)

    def flops(x, source, *indices, axes):
        return x.with_shape(indexed_shape(x, indices, axes)).size
