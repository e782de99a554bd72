"""Other shapes and orders of the same elements."""

from __future__ import annotations

from opstep.frontends.onnx.export_rules import rule
from opstep.kernels.rules.axes import axes_of, axis_of
from opstep.runtime.ir.types import TensorType


@rule("reshape", "flatten")
def _reshape(b, t, x, **attrs):
    return b.shaped(x, t.shape)


@rule("squeeze")
def _squeeze(b, t, x, axes):
    if axes is None:
        axes = [k for k, d in enumerate(x.shape) if d == 1]
    return b.onnx("Squeeze", x, b.value(axes_of(axes, x.type.rank)), out=t) if axes else x


@rule("unsqueeze")
def _unsqueeze(b, t, x, axes):
    return b.onnx("Unsqueeze", x, b.value(axes), out=t) if axes else x


@rule("transpose")
def _transpose(b, t, x, perm):
    perm = list(reversed(range(t.rank))) if perm is None else axes_of(perm, t.rank)
    return b.onnx("Transpose", x, out=t, perm=list(perm)) if t.rank else x


@rule("broadcast")
def _broadcast(b, t, x, shape):
    return x if t.shape == x.shape else b.onnx("Expand", x, b.vector(t.shape), out=t)


@rule("tile")
def _tile(b, t, x, repeats):
    more = len(repeats) - x.type.rank
    if more > 0:
        x = b.unsqueeze(x, axes=list(range(more)))
    repeats = (*[1] * -more, *repeats)
    return b.onnx("Tile", x, b.vector(repeats), out=t) if repeats else x


@rule("concat")
def _concat(b, t, *xs, axis):
    return b.onnx("Concat", *xs, out=t, axis=axis)


@rule("stack")
def _stack(b, t, *xs, axis):
    at = axis_of(axis, t.rank)
    return b.concat(*(b.unsqueeze(x, axes=[at]) for x in xs), axis=at)


@rule("split")
def _split(b, t, x, sizes, sections, axis):
    types = (t,) if isinstance(t, TensorType) else t
    at = axis_of(axis, x.type.rank)
    parts = [r.shape[at] for r in types]
    return b.onnx("Split", x, b.vector(parts), out=types, axis=at)


@rule("flip")
def _flip(b, t, x, axes):
    if not axes:
        return x
    count = len(axes)
    return b.onnx(
        "Slice", x, b.value([-1] * count), b.value([-(2**62)] * count),
        b.value(axes_of(axes, t.rank)), b.value([-1] * count), out=t,
    )  # fmt: skip


@rule("roll")
def _roll(b, t, x, shifts, axes):
    for shift, axis in zip(shifts, axes_of(axes, t.rank), strict=True):
        size = x.shape[axis]
        if size in (0, 1):
            continue
        place = (-shift) % size  # where what comes first is now
        first = b.slice(x, starts=[place], ends=[size], axes=[axis])
        rest = b.slice(x, starts=[0], ends=[place], axes=[axis])
        x = b.concat(first, rest, axis=axis)
    return x


def _triangle(upper):
    def write(b, t, x, diagonal):
        return b.onnx("Trilu", x, b.value(diagonal), out=t, upper=upper)

    return write


rule("tril")(_triangle(0))
rule("triu")(_triangle(1))


@rule("pad")
def _pad(b, t, x, pads, mode, value):
    if not t.rank:
        return x
    filler = b.like(value, x) if mode == "constant" else None
    return b.onnx("Pad", x, b.vector(pads), filler, out=t, mode=mode)
