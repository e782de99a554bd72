"""Sorted rows, and the largest elements."""

from __future__ import annotations

from opstep.frontends.onnx.export_rules import rule
from opstep.runtime.ir.types import boolean, u8


def _top(b, x, k, axis, types, largest):
    given = b.to(x, u8) if x.dtype is boolean else x
    values, indices = b.onnx(
        "TopK", given, b.vector([k]), out=(types[0].with_dtype(given.dtype), types[1]), axis=axis,
        largest=int(largest), sorted=1,
    )  # fmt: skip
    return b.to(values, x.dtype), indices


@rule("top_k")
def _top_k(b, t, x, k, axis, largest, sorted):
    return _top(b, x, k, axis, t, largest)


@rule("sort")
def _sort(b, t, x, axis, descending):
    return _top(b, x, x.shape[axis], axis, t, descending)


@rule("argsort")
def _argsort(b, t, x, axis, descending):
    return _top(b, x, x.shape[axis], axis, (x.type, t), descending)[1]
