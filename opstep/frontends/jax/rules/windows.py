"""Reductions of windows: pooling."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

from opstep.frontends.jax.body import Body, Dim, Var
from opstep.frontends.jax.errors import Untranslatable
from opstep.frontends.jax.rules.layout import padded, spaced
from opstep.frontends.jax.rules.registry import rule
from opstep.frontends.jax.types import sizes
from opstep.kernels.rules.literals import limits
from opstep.runtime.ir.types import DType


class _Pooling(NamedTuple):
    """How a tensor becomes images [N, C, …], and windows of those."""

    order: list[int]  # axes of the tensor: those without windows first
    images: list[int]  # the others
    kernel: list[int]
    stride: list[int]
    dilation: list[int]
    low: list[Any]
    high: list[Any]

    @property
    def attrs(self) -> dict[str, Any]:
        found: dict[str, Any] = {"kernel": self.kernel, "stride": self.stride}
        if any(self.low) or any(self.high):
            same = self.low == self.high
            found["padding"] = self.low if same else [*self.low, *self.high]
        return found


def _pooling(
    window: Sequence[int], strides: Sequence[int], padding: Any, dilation: Sequence[int] | None
) -> _Pooling:  # fmt: skip
    pads = [sizes(p) for p in padding]
    dilation = dilation or [1] * len(window)
    plain = [k for k, n in enumerate(window) if n == strides[k] == 1 and not any(pads[k])]
    images = [k for k in range(len(window)) if k not in plain] or [plain.pop()]
    if len(images) > 3:
        raise Untranslatable(f"windows along {len(images)} axes")
    return _Pooling(
        [*plain, *images], images, [int(window[k]) for k in images],
        [int(strides[k]) for k in images], [int(dilation[k]) for k in images],
        [pads[k][0] for k in images], [pads[k][1] for k in images],
    )  # fmt: skip


def _images(b: Body, x: Var, how: _Pooling) -> Var:
    """[N, C, …]"""
    x = b.transposed(x, how.order)
    count = x.type.rank - len(how.images)
    if count == 2:
        return x
    lead: list[Dim] = [1, prod(x.shape[:count])] if count != 1 else [1, x.shape[0]]  # pyright: ignore
    return b.reshape(x, shape=[*lead, *x.shape[count:]])


def _back(b: Body, y: Var, how: _Pooling, shape: Sequence[Dim]) -> Var:
    """From images to a tensor of that shape."""
    y = b.reshaped(y, [shape[k] for k in how.order])
    return b.transposed(y, [how.order.index(k) for k in range(len(how.order))])


def lowest(dtype: DType) -> int | float:
    return -float("inf") if dtype.is_float else limits(dtype)[0]


def _prepared(
    b: Body, x: Var, how: _Pooling, base: Sequence[int] | None, value: Any
) -> tuple[Var, _Pooling]:  # fmt: skip
    """Images whose elements are spread, and padded where the op does not."""
    if base is not None and any(int(d) != 1 for d in base):
        x = spaced(b, x, [int(d) - 1 for d in base], value)
    x = _images(b, x, how)
    reach = [(k - 1) * d for k, d in zip(how.kernel, how.dilation, strict=True)]
    odd = any(
        not isinstance(p, int) or p < 0 or p > r // 2
        for p, r in zip((*how.low, *how.high), (*reach, *reach), strict=True)
    )
    if odd:
        x = padded(b, x, [0, 0, *how.low], [0, 0, *how.high], value)
        zeros = [0] * len(how.kernel)
        how = how._replace(low=zeros, high=zeros)
    return x, how


@rule("reduce_window_max", values=True)
def reduce_window_max(
    b: Body, x: Var, *, window_dimensions: Any, window_strides: Any, padding: Any,
    base_dilation: Any = None, window_dilation: Any = None,
) -> Var:  # fmt: skip
    how = _pooling(window_dimensions, window_strides, padding, window_dilation)
    x, how = _prepared(b, x, how, base_dilation, lowest(x.dtype))
    found = b.op(f"max_pool{len(how.kernel)}d", x, dilation=how.dilation, **how.attrs)
    return _back(b, found, how, b.out.shape)


@rule("reduce_window_min", values=True)
def reduce_window_min(
    b: Body, x: Var, *, window_dimensions: Any, window_strides: Any, padding: Any,
    base_dilation: Any = None, window_dilation: Any = None,
) -> Var:  # fmt: skip
    turned = b.neg(x) if x.dtype.is_float else b.bitwise_not(x)
    found = reduce_window_max(
        b, turned, window_dimensions=window_dimensions, window_strides=window_strides,
        padding=padding, base_dilation=base_dilation, window_dilation=window_dilation,
    )  # fmt: skip
    return b.neg(found) if x.dtype.is_float else b.bitwise_not(found)


@rule("reduce_window_sum")
def reduce_window_sum(
    b: Body, x: Var, *, window_dimensions: Any, window_strides: Any, padding: Any,
    base_dilation: Any = None, window_dilation: Any = None,
) -> Var:  # fmt: skip
    how = _pooling(window_dimensions, window_strides, padding, window_dilation)
    x, how = _prepared(b, x, how, base_dilation, 0)
    rank = len(how.kernel)
    if x.dtype.is_float and all(d == 1 for d in how.dilation):
        found = b.op(f"avg_pool{rank}d", x, divisor_override=1, **how.attrs)
        return _back(b, found, how, b.out.shape)
    lead = x.shape[0] * x.shape[1]
    single = b.reshape(x, shape=[lead, 1, *x.shape[2:]])
    ones = b.ones(shape=[1, 1, *how.kernel], dtype=x.dtype)
    attrs = how.attrs
    del attrs["kernel"]
    found = b.op(f"conv{rank}d", single, ones, dilation=how.dilation, **attrs)
    return _back(b, found, how, b.out.shape)


@rule("select_and_scatter_add", values=True)
def select_and_scatter_add(
    b: Body, source: Var, x: Var, *, select_prim: Any, window_dimensions: Any,
    window_strides: Any, padding: Any,
) -> Var:  # fmt: skip
    """The derivative of the largest of each window."""
    if select_prim.name not in ("ge", "le"):
        raise Untranslatable(f"elements that {select_prim.name} selects")
    if select_prim.name == "le":
        x = b.neg(x)
    how = _pooling(window_dimensions, window_strides, padding, None)
    shape = x.shape
    images = _images(b, x, how)
    gy = _images(b, source, how)
    pads = None
    reach = [(k - 1) // 2 for k in how.kernel]
    if any(p > r for p, r in zip((*how.low, *how.high), (*reach, *reach), strict=True)):
        pads = how.low, how.high
        images = padded(b, images, [0, 0, *how.low], [0, 0, *how.high], lowest(x.dtype))
        zeros = [0] * len(how.kernel)
        how = how._replace(low=zeros, high=zeros)
    found = b.op(f"max_pool{len(how.kernel)}d_grad", gy, images, **how.attrs)
    if pads is not None:
        found = padded(b, found, [0, 0, *(-p for p in pads[0])], [0, 0, *(-p for p in pads[1])], 0)
    return _back(b, found, how, shape)


@rule("select_and_gather_add")
def select_and_gather_add(
    b: Body, tangent: Var, x: Var, *, select_prim: Any, window_dimensions: Any,
    window_strides: Any, padding: Any, base_dilation: Any = None, window_dilation: Any = None,
) -> Var:  # fmt: skip
    """Of each window, the element of the first where the second is largest."""
    if select_prim.name != "ge":
        raise Untranslatable(f"elements that {select_prim.name} selects")
    how = _pooling(window_dimensions, window_strides, padding, window_dilation)
    images, narrow = _prepared(b, x, how, base_dilation, lowest(x.dtype))
    others, _ = _prepared(b, tangent, how, base_dilation, 0)
    name = f"max_pool{len(how.kernel)}d_with_indices"
    _, places = b.op(name, images, dilation=how.dilation, **narrow.attrs)
    flat = [*others.shape[:2], prod(others.shape[2:])]  # pyright: ignore[reportCallIssue, reportArgumentType]
    out = [*places.shape[:2], prod(places.shape[2:])]
    chosen = b.gather_elements(b.reshape(others, shape=flat), b.reshape(places, shape=out), axis=2)
    return _back(b, chosen, how, b.out.shape)
