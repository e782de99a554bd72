"""Elements read by index."""

from __future__ import annotations

from typing import Any

import numpy as np

from opstep.frontends.jax.body import Body, Var
from opstep.frontends.jax.rules.registry import rule
from opstep.frontends.jax.rules.selection import (
    Places,
    as_index,
    components,
    pairs,
    selected,
    start_of,
)
from opstep.frontends.jax.types import UNSIGNED, held, size, sizes
from opstep.kernels.rules.literals import limits
from opstep.runtime.ir.types import boolean


@rule("gather")
def gather(
    b: Body, x: Var, index: Var, *, dimension_numbers: Any, slice_sizes: Any, mode: Any,
    fill_value: Any = None,
) -> Var:  # fmt: skip
    d = dimension_numbers
    window = list(sizes(slice_sizes))
    batching = pairs(d.operand_batching_dims, d.start_indices_batching_dims)
    dropped = list(map(int, d.collapsed_slice_dims))
    places = Places(list(map(int, d.start_index_map)), batching, dropped, window, str(mode))
    missing = _missing(b, x, mode, fill_value)
    along = _along(b, x, index, places, missing)
    if along is not None:
        return b.reshaped(along, b.out.shape)
    found = selected(b, x, index, places)
    rank = len(b.out.shape)
    offsets = list(map(int, d.offset_dims))
    kept = [k for k in range(x.type.rank) if k not in dropped and k not in dict(batching)]
    labels: list[Any] = [None] * rank
    for place, axis in zip(offsets, kept, strict=True):
        labels[place] = ("axis", axis)
    rest = iter(range(rank))
    labels = [label or ("batch", next(rest)) for label in labels]
    y = _picked(b, x, found.axes, found.indices, missing)
    shape = [b.out.shape[labels.index(label)] for label in found.labels]
    y = b.broadcasted(y, shape)
    return b.transposed(y, [found.labels.index(label) for label in labels])


def _picked(b: Body, x: Var, axes: list[int], indices: list[Var], missing: Any) -> Var:
    if not axes:
        return x
    if len(axes) == 1 and missing is None:
        return b.gather(x, indices[0], axis=axes[0])
    attrs: dict[str, Any] = {} if axes == list(range(len(axes))) else {"axes": axes}
    if missing is not None:
        attrs["missing"] = missing
    return b.op("index", x, *indices, **attrs)


def _missing(b: Body, x: Var, mode: Any, fill_value: Any) -> Any:
    """What is read where nothing is; None for NaN."""
    if "FILL" not in str(mode):
        return None
    if fill_value is not None:
        number = held(np.asarray(fill_value, b.ins[0].dtype)).item()
        is_nan = isinstance(number, float) and np.isnan(number)
        return None if is_nan else int(number) if x.dtype is boolean else number
    if x.dtype.is_float:
        return None
    if x.dtype is boolean:
        return 1
    if str(b.ins[0].dtype) in UNSIGNED:
        return -1
    return None if x.dtype.kind == "u" else limits(x.dtype)[0]


def _along(b: Body, x: Var, index: Var, places: Places, missing: Any) -> Var | None:
    """As `gather_elements`, where all axes but one go along with the index; else None."""
    rank = x.type.rank
    if len(places.start) != 1 or len(places.batching) != rank - 1 or any(
        n != 1 for n in places.window
    ):  # fmt: skip
        return None
    (axis,) = places.start
    if axis not in places.dropped:
        return None
    along = dict(places.batching)
    batch = list(index.shape[:-1])
    others = [k for k in range(len(batch)) if k not in along.values()]
    order = [along.get(k, -1) for k in range(rank)]
    order[axis] = others[0] if others else -1
    if len(others) > 1 or [k for k in order if k >= 0] != list(range(len(batch))):
        return None
    (place,) = components(b, index, 1)
    place = start_of(b, x.shape[axis], place, 1, places.mode)
    if order[axis] < 0:
        place = b.reshaped(place, [1 if k == axis else batch[order[k]] for k in range(rank)])
    attrs = {} if missing is None else {"missing": missing}
    return b.gather_elements(x, place, axis=axis, **attrs)


@rule("dynamic_slice", numbers=True)
def dynamic_slice(b: Body, x: Var, *starts: Any, slice_sizes: Any) -> Var:
    x = x if isinstance(x, Var) else b.of_dtype(x, b.out.dtype)
    starts = tuple(as_index(b, s, b.ins[-1]) for s in starts)
    window = [size(s) for s in slice_sizes]
    moving = [k for k, s in enumerate(starts) if isinstance(s, Var)]
    fixed = [
        0 if k in moving else _inside(s, x.shape[k], window[k]) for k, s in enumerate(starts)
    ]  # fmt: skip
    wide = [x.shape[k] if k in moving else w for k, w in enumerate(window)]
    x = b.cropped(x, fixed, wide)
    for axis in moving:
        if window[axis] == x.shape[axis]:
            continue
        x = b.gather(x, places_from(b, starts[axis], x.shape[axis], window[axis], axis), axis=axis)
    return x


def _inside(start: Any, extent: Any, window: Any) -> Any:
    last = extent - window
    return min(max(start, 0), last) if isinstance(last, int) else start


def places_from(b: Body, start: Any, extent: Any, window: Any, axis: int) -> Var:
    """The places of a window that is moved inside."""
    last = extent - window
    if isinstance(last, int):
        first = b.clip(start, low=0, high=last)
    else:
        first = b.minimum(b.maximum(start, 0), b.size(last, start.dtype))
    if window == 1:
        return b.reshape(first, shape=[1])
    return b.add(b.iota(shape=[window], dtype=first.dtype), first)
