"""Shapes and where elements lie."""

from __future__ import annotations

from typing import Any

import numpy as np

from opstep.frontends.onnx.body import Body, Var, axis_of
from opstep.frontends.onnx.errors import Untranslatable
from opstep.frontends.onnx.rules.pointwise import dtype_of
from opstep.frontends.onnx.rules.registry import rule
from opstep.frontends.onnx.values import known, listed, number
from opstep.runtime.ir.dims import Expr
from opstep.runtime.ir.types import boolean, f32, i64

BEYOND = 2**31 - 1  # an end that is at the end, whatever the size


@rule("Reshape", since=5, known=[1], before=["shape"])
def reshape(b: Body, x, shape, *, allowzero=0):
    shape = listed(shape)
    if not allowzero:
        shape = [x.shape[k] if d == 0 and isinstance(d, int) else d for k, d in enumerate(shape)]
    if -1 in shape:
        missing = _missing(x.shape, [d for d in shape if d != -1])
        shape = [missing if d == -1 else d for d in shape] if missing is not None else shape
    return b.reshaped(x, shape)


def _missing(shape: Any, others: list[Any]) -> Any:
    """The size that is left out, where all of the others are among x's: -1 is as good else."""
    left = list(shape)
    for d in others:
        if d in left:
            left.remove(d)
        elif d != 1:
            return None
    return left[0] if len(left) == 1 else 1 if not left else None


@rule("Flatten")
def flatten(b: Body, x, *, axis=1):
    axis = axis + x.type.rank if axis < 0 else axis
    sizes: list[Any] = [1, 1]
    for k, d in enumerate(x.shape):
        sizes[k >= axis] = sizes[k >= axis] * d
    return b.reshaped(x, sizes)


@rule("Transpose")
def transpose(b: Body, x, *, perm=None):
    return b.transposed(x, perm if perm is not None else list(range(x.type.rank))[::-1])


@rule("Squeeze", since=13, known=[1], before=["axes"])
def squeeze(b: Body, x, axes=None):
    given = [k for k, d in enumerate(x.shape) if d == 1] if axes is None else listed(axes)
    return b.squeeze(x, axes=sorted(axis_of(a, x.type.rank) for a in given)) if given else x


@rule("Unsqueeze", since=13, known=[1], before=["axes"])
def unsqueeze(b: Body, x, axes):
    rank = x.type.rank + len(listed(axes))
    return b.unsqueeze(x, axes=sorted(axis_of(a, rank) for a in listed(axes)))


@rule("Concat")
def concat(b: Body, *xs, axis=1):
    kept = [x for x in xs if x.shape != (0,) or xs[0].type.rank == 1]
    return b.concat(*kept, axis=axis_of(axis, kept[0].type.rank)) if len(kept) > 1 else kept[0]


@rule("Split", known=[1])
def split(b: Body, x, sizes=None, *, axis=0, split=None, num_outputs=None):
    axis, count = axis_of(axis, x.type.rank), num_outputs or len(b.outputs)
    given = listed(sizes) if sizes is not None else split
    if not 0 < count <= max(len(b.outputs), 1):
        raise Untranslatable(f"Split into {count} parts with {len(b.outputs)} outputs")
    if given is None:
        whole = x.shape[axis]
        if isinstance(whole, int):
            each = -(-whole // count)
            given = [min(each, max(whole - k * each, 0)) for k in range(count)]
        else:
            given = [whole // count] * count
    if len(given) == 1:
        return x
    return b.split(x, sizes=given, axis=axis)


@rule("Slice", since=10, known=[1, 2, 3, 4], before=["starts", "ends", "axes"])
def slice_(b: Body, x, starts, ends, axes=None, steps=None):
    starts, ends = listed(starts), listed(ends)
    steps = [1] * len(starts) if steps is None else listed(steps)
    axes = range(len(steps)) if axes is None else listed(axes)
    chosen: dict[str, list[Any]] = {"starts": [], "ends": [], "axes": [], "steps": []}
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        axis = axis_of(axis, x.type.rank)
        size = x.shape[axis]
        start, end = _bound(start, size), _bound(end, size)
        if step == 1 and start == 0 and end in (size, BEYOND):
            continue
        if isinstance(size, int) and isinstance(start, int) and isinstance(end, int):
            first, last, _ = slice(start, end, step).indices(size)
            start, end = first, last if last >= 0 else -size - 1
            start = 0 if first < 0 else start
            if first < 0:
                end = 0
        for key, value in zip(chosen, (start, end, axis, step), strict=True):
            chosen[key].append(value)
    if all(step == 1 for step in chosen["steps"]):
        del chosen["steps"]
    return b.slice(x, **chosen) if chosen["axes"] else x


def _bound(bound: Any, size: Any) -> Any:
    if isinstance(bound, int) and isinstance(size, Expr):
        return max(min(bound, BEYOND), -BEYOND)
    return bound


@rule("Expand", known=[1])
def expand(b: Body, x, shape):
    """Both are broadcast: to 1, a size stays as it is."""
    shape = listed(shape)
    wide = [1] * (len(shape) - x.type.rank) + list(x.shape)
    shape = [1] * (len(wide) - len(shape)) + shape
    return b.broadcasted(
        x, [w if d == 1 or d == -1 else d for d, w in zip(shape, wide, strict=True)]
    )


@rule("Tile", since=6, known=[1])
def tile(b: Body, x, repeats):
    repeats = listed(repeats)
    return b.tile(x, repeats=repeats) if any(r != 1 for r in repeats) else x


@rule("Pad", since=11, known=[1, 3])
def pad(b: Body, x, pads, value=None, axes=None, *, mode="constant"):
    pads = listed(pads)
    if axes is not None:
        places = [axis_of(a, x.type.rank) for a in listed(axes)]
        whole: list[Any] = [0] * (2 * x.type.rank)
        for k, axis in enumerate(places):
            whole[axis], whole[axis + x.type.rank] = pads[k], pads[k + len(places)]
        pads = whole
    if not any(p != 0 for p in pads):
        return x
    if mode != "constant":
        return b.pad(x, pads=pads, mode=mode)
    if value is None:
        return b.pad(x, pads=pads)
    mask = b.pad(b.ones(shape=list(x.shape), dtype=boolean), pads=pads)
    return b.where(mask, b.pad(x, pads=pads), b.reshaped(value, []))


def pad_with(b: Body, x: Var, pads: list[Any], value: Any) -> Var:
    return b.pad(x, pads=pads, value=value) if any(p != 0 for p in pads) else x


@rule("Pad")
def pad_by_attributes(b: Body, x, *, pads=None, paddings=None, mode="constant", value=0.0):
    pads = pads or paddings or []
    return b.pad(x, pads=pads, mode=mode) if mode != "constant" else pad_with(b, x, pads, value)


@rule("DepthToSpace")
def depth_to_space(b: Body, x, *, blocksize, mode="DCR"):
    n, c, h, w = x.shape
    k = blocksize
    if mode == "DCR":
        wide = b.transpose(
            b.reshape(x, shape=[n, k, k, c // (k * k), h, w]), perm=[0, 3, 4, 1, 5, 2]
        )
    else:
        wide = b.transpose(
            b.reshape(x, shape=[n, c // (k * k), k, k, h, w]), perm=[0, 1, 4, 2, 5, 3]
        )
    return b.reshape(wide, shape=[n, c // (k * k), h * k, w * k])


@rule("SpaceToDepth")
def space_to_depth(b: Body, x, *, blocksize, mode="DCR"):
    n, c, h, w = x.shape
    k = blocksize
    wide = b.reshape(x, shape=[n, c, h // k, k, w // k, k])
    perm = [0, 3, 5, 1, 2, 4] if mode == "DCR" else [0, 1, 3, 5, 2, 4]
    return b.reshape(b.transpose(wide, perm=perm), shape=[n, c * k * k, h // k, w // k])


@rule("EyeLike")
def eye_like(b: Body, x, *, dtype=None, k=0):
    kind = x.dtype if dtype is None else dtype_of(dtype)
    return b.eye(shape=list(x.shape), diagonal=k, dtype=kind)


@rule("ConstantOfShape", known=[0])
def constant_of_shape(b: Body, shape, *, value=None):
    if value is None:
        return b.filled(listed(shape), 0.0, f32)
    found = known(value.reshape(-1)[:1])
    first = number(found.elements[0])
    assert first is not None
    return b.filled(listed(shape), first, found.dtype)


@rule("Range", known=[0, 1, 2])
def range_(b: Body, start, limit, delta, **_):
    first, last, step = (a.reshape(-1)[0] for a in (start, limit, delta))
    dtype = next((known(a).dtype for a in (start, limit, delta) if a.dtype != object), None)
    if any(isinstance(v, Expr) for v in (first, last, step)):
        if isinstance(step, Expr) or step not in (1, -1):
            raise Untranslatable("a range whose step is not 1")
        count = (last - first) * int(step)
        if isinstance(first, Expr):
            steps = b.iota(shape=[count], start=0, step=int(step), dtype=dtype)
            return b.add(steps, b.extent(of=[first], dtype=dtype))
    else:
        count = max(int(np.ceil((float(last) - float(first)) / float(step))), 0)
        first, step = number(first), number(step)
    first = first if isinstance(first, float) else int(first)  # pyright: ignore
    step = step if isinstance(step, float) else int(step)  # pyright: ignore
    return b.iota(shape=[count], start=first, step=step, dtype=dtype)


@rule("OneHot", known=[1])
def one_hot(b: Body, index, depth, values, *, axis=-1):
    classes = listed(depth)[0]
    classes = int(classes) if isinstance(classes, float) else classes
    index = index if index.dtype.is_integer else b.to(index, i64)
    below = b.less(index, 0)
    inside = b.where(below, b.add(index, b.size(classes, index.dtype)), index)
    outside = b.size(classes, index.dtype)
    inside = b.where(b.less(inside, 0), outside, inside)
    axis = axis_of(axis, index.type.rank + 1)
    chosen = b.one_hot(inside, classes=classes, axis=axis, dtype=boolean)
    off, on = (b.select(values, index=k) for k in (0, 1))
    return b.where(chosen, on, off)


@rule("Trilu", known=[1])
def trilu(b: Body, x, k=None, *, upper=1):
    diagonal = 0 if k is None else int(listed(k)[0])
    return (b.triu if upper else b.tril)(x, diagonal=diagonal)


@rule("ReverseSequence")
def reverse_sequence(b: Body, x, lengths, *, time_axis=0, batch_axis=1):
    """Element t of a sequence of n is element n-1-t where t < n."""
    batch_first = b.transposed(x, [batch_axis, time_axis, *range(2, x.type.rank)])
    shape = list(batch_first.shape[:2])
    t = b.iota(shape=shape, axis=1)
    n = b.unsqueeze(b.to(lengths, i64), axes=[1])
    places = b.where(b.less(t, n), b.sub(b.sub(n, 1), t), t)
    behind = [1] * (x.type.rank - 2)
    places = b.broadcasted(b.reshaped(places, [*shape, *behind]), list(batch_first.shape))
    found = b.gather_elements(batch_first, places, axis=1)
    return b.transposed(found, [batch_axis, time_axis, *range(2, x.type.rank)])
