"""Parts of a tensor by position."""

from __future__ import annotations

from opstep.frontends.onnx.export_rules import rule
from opstep.kernels.rules.axes import axes_of, axis_of
from opstep.runtime.ir.types import boolean


@rule("slice")
def _slice(b, t, x, starts, ends, axes, steps):
    if not starts:
        return x
    axes = axes_of(range(len(starts)) if axes is None else axes, x.type.rank)
    given = [b.vector(starts), b.vector(ends), b.value(axes)]
    if steps is not None and set(steps) != {1}:
        given.append(b.value(steps))
    return b.onnx("Slice", x, *given, out=t)


@rule("select")
def _select(b, t, x, index, axis):
    if type(index) is int:
        at = b.value(index)
    else:
        at = b.reshape(b.vector([index]), shape=[])
    return b.onnx("Gather", x, at, out=t, axis=axis)


def _diagonal_start(offset, columns):
    return offset if offset >= 0 else -offset * columns


@rule("diagonal")
def _diagonal(b, t, x, offset, axes):
    """In a row of all elements, neighbours on a diagonal are one row and one element apart."""
    first, second = (axis_of(a, x.type.rank) for a in axes)
    others = [k for k in range(x.type.rank) if k not in (first, second)]
    moved = b.transpose(x, perm=[*others, first, second])
    rows, columns = moved.shape[-2:]
    flat = b.shaped(moved, (*moved.shape[:-2], rows * columns))
    start = _diagonal_start(offset, columns)
    count = t.shape[-1]
    return b.onnx(
        "Slice", flat, b.vector([start]), b.vector([start + count * (columns + 1)]),
        b.value([len(others)]), b.vector([columns + 1]), out=t,
    )  # fmt: skip


@rule("diagonal_scatter")
def _diagonal_scatter(b, t, x, source, offset, axes):
    first, second = (axis_of(a, t.rank) for a in axes)
    others = [k for k in range(t.rank) if k not in (first, second)]
    perm = [*others, first, second]
    if source.shape[-1] == 0:
        return x
    moved = b.transpose(x, perm=perm)
    rows, columns = moved.shape[-2:]
    on = b.eye(shape=[rows, columns], diagonal=offset, dtype=boolean)
    row = b.iota(shape=[rows])
    place = b.add(row, offset) if offset < 0 else row
    known = b.minimum(b.maximum(place, 0), b.vector([source.shape[-1] - 1]))
    spread = b.unsqueeze(b.gather(source, known, axis=len(others)), axes=[-1])
    found = b.where(on, spread, moved)
    back = [perm.index(k) for k in range(t.rank)]
    return b.transpose(found, perm=back)


@rule("slice_scatter")
def _slice_scatter(b, t, x, source, starts, ends, axes, steps):
    """Each element looks up whether it is in the slice, and where there."""
    axes = axes_of(range(len(starts)) if axes is None else axes, t.rank)
    steps = steps or [1] * len(axes)
    inside = None
    for start, step, axis in zip(starts, steps, axes, strict=True):
        size, count = t.shape[axis], source.shape[axis]
        if type(start) is int and type(size) is int:
            start = start + size if start < 0 else start
            start = max(0, min(start, size)) if step > 0 else max(-1, min(start, size - 1))
        elif type(start) is int and start < 0:
            start = start + size
        away = b.sub(b.iota(shape=[size]), b.vector([start]))
        turn = b.floor_div(away, step)
        fits = b.equal(b.mul(turn, step), away)
        fits = b.logical_and(fits, b.greater_equal(turn, 0))
        fits = b.logical_and(fits, b.less(turn, b.vector([count])))
        if count == 0:
            return x
        known = b.minimum(b.maximum(turn, 0), b.vector([count - 1]))
        source = b.gather(source, known, axis=axis)
        fits = b.reshape(fits, shape=[size, *[1] * (t.rank - axis - 1)])
        inside = fits if inside is None else b.logical_and(inside, fits)
    return x if inside is None else b.where(inside, source, x)
