"""Padding with a constant or with elements of the tensor: pad."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from opstep.kernels.move.copying import copy_block, fill_block
from opstep.kernels.move.cuda_padding import pad as gpu_pad
from opstep.kernels.rules.axes import strides_of
from opstep.kernels.rules.literals import bits_of, check_value
from opstep.runtime.device.launch import Arg, Launch
from opstep.runtime.ir.dims import Dim
from opstep.runtime.ir.op import Mismatch, Op, Traits

MODES = {"constant": "constant", "reflect": "reflect", "edge": "edge", "wrap": "wrap"}


class pad(Op):
    """x with padding: `pads` has the amounts before each axis, then those after each; negative
    amounts crop.

    Modes: constant (`value`), reflect (mirrored at the outermost element, which is not repeated),
    edge (repeats the outermost element), wrap (periodic).
    """

    signature = 'pad(x: T, *, pads: dims, mode: str = "constant", value: number = 0)'
    choices = {"mode": tuple(MODES)}
    source = "torch.nn.functional.pad, ONNX Pad"
    traits = Traits(moves=True)

    def infer(x, *, pads, mode, value):
        if mode not in MODES:
            raise Mismatch(f"no mode {mode!r}", "mode", hint=f"there are {', '.join(MODES)}")
        if len(pads) != 2 * x.rank:
            raise Mismatch(
                f"{len(pads)} pads for the {x.rank} axes of {x}",
                "pads",
                hint="first how much before each axis, then how much behind each",
            )
        check_value(value, x.dtype)
        shape = []
        for k, n in enumerate(x.shape):
            before, after = pads[k], pads[x.rank + k]
            _check_extent(k, n, before, after, mode)
            shape.append(n + before + after)
        return x.with_shape(shape)

    def oracle(x, *, pads, mode, value):
        rank = x.ndim
        grown = [(max(pads[k], 0), max(pads[rank + k], 0)) for k in range(rank)]
        given = {"constant_values": value} if mode == "constant" else {}
        y = np.pad(x, grown, mode, **given) if rank else x
        kept = tuple(
            slice(max(-pads[k], 0), n - max(-pads[rank + k], 0)) for k, n in enumerate(y.shape)
        )
        return y[kept]

    def cpu(x, y, *, pads, mode, value):
        before = pads[: x.rank]
        if mode == "constant":
            return _constant(x, y, before, bits_of(value, x.dtype))
        pieces = [
            _pieces(n, total, start, mode)
            for n, total, start in zip(x.shape, y.shape, before, strict=True)
        ]
        return _boxes(x, y, pieces)

    def cuda(x, y, *, pads, mode, value):
        bits = bits_of(value, x.dtype) if mode == "constant" else 0
        launch = gpu_pad(x, y, pads[: x.rank], mode, bits)
        return launch or pad.cpu(x, y, pads=pads, mode=mode, value=value)

    def grad(g, operands, results, grads, *, pads, mode, value):
        x, gy = operands[0], grads[0]
        if mode == "constant":
            return (g.pad(gy, pads=[-n for n in pads]),)
        for k, n in enumerate(x.shape):
            gy = _folded(g, gy, k, n, pads[k], pads[x.type.rank + k], mode)
        return (gy,)


def _check_extent(axis: int, n: Dim, before: Dim, after: Dim, mode: str) -> None:
    """Raises Mismatch where an axis known in numbers cannot be padded so."""
    if type(n) is not int or type(before) is not int or type(after) is not int:
        return
    if n + before + after < 0 or n + before < 0 or n + after < 0:
        raise Mismatch(f"pads {before} and {after} take more than the {n} of axis {axis}", "pads")
    if mode == "constant":
        return
    least = {"reflect": max(before, after) + 1, "wrap": max(before, after), "edge": 1}[mode]
    if max(before, after) > 0 and n < least:
        raise Mismatch(
            f"axis {axis} has {n} elements, and {mode} by {max(before, after)} needs {least}",
            "pads",
        )
    if min(before, after) < 0:
        raise Mismatch(f"only constant pads may be less than 0, not {mode}", "pads")


def _constant(x: Arg, y: Arg, before: Sequence[int], value: int) -> list[Launch]:
    """The border as slabs, axis by axis, then what is kept of x."""
    steps, inner = strides_of(y.shape), strides_of(x.shape)
    low = [min(max(b, 0), total) for b, total in zip(before, y.shape, strict=True)]
    high = [
        max(min(b + n, total), start)
        for b, n, total, start in zip(before, x.shape, y.shape, low, strict=True)
    ]
    launches: list[Launch] = []
    box = list(y.shape)
    corner = 0
    for k, total in enumerate(y.shape):
        for start, end in ((0, low[k]), (high[k], total)):
            slab = [*box[:k], end - start, *box[k + 1 :]]
            launches += fill_block(y, value, slab, steps, corner + start * steps[k])
        box[k] = high[k] - low[k]
        corner += low[k] * steps[k]
    start = sum((a - b) * s for a, b, s in zip(low, before, inner, strict=True))
    return launches + copy_block(x, y, box, inner, steps, start, corner)


def _pieces(n: int, total: int, before: int, mode: str) -> list[tuple[int, int, int, int]]:
    """(extent, from, step in x, to) of the runs that make up an axis of y."""
    after = total - n - before
    first, last = {
        "reflect": ((before, -1), (n - 2, -1)),
        "edge": ((0, 0), (n - 1, 0)),
        "wrap": ((n - before, 1), (0, 1)),
    }[mode]
    return [
        (before, *first, 0),
        (n, 0, 1, before),
        (after, *last, before + n),
    ]


def _boxes(x: Arg, y: Arg, pieces) -> list[Launch]:
    inner, steps = strides_of(x.shape), strides_of(y.shape)
    launches: list[Launch] = []
    for box in product(*pieces):
        launches += copy_block(
            *(x, y, [p[0] for p in box]),
            [p[2] * s for p, s in zip(box, inner, strict=True)],
            steps,
            sum(p[1] * s for p, s in zip(box, inner, strict=True)),
            sum(p[3] * s for p, s in zip(box, steps, strict=True)),
        )
    return launches


def _folded(g, gy, axis: int, n: Dim, before: Dim, after: Dim, mode: str):
    """`gy` with the border along one axis added to the elements that it was copied from: all else
    is copied once, or twice where both borders may have been copied from the same elements.
    """

    def part(x, start: Dim, end: Dim):
        return g.slice(x, starts=[start], ends=[end], axes=[axis])

    added = []  # (from, to, what)
    for width, start, near in ((before, 0, True), (after, before + n, False)):
        if width == 0:
            continue
        border = part(gy, start, start + width)
        if mode == "edge":
            first, width = 0 if near else n - 1, 1
            border = g.sum(border, axes=[axis], keepdims=True)
        elif mode == "reflect":
            first = 1 if near else n - 1 - width
            border = g.flip(border, axes=[axis])
        else:
            first = n - width if near else 0
        added.append((first, first + width, border))

    def with_added(x, added):
        pieces, done = [], 0
        for first, end, border in added:
            pieces += [part(x, done, first), g.add(part(x, first, end), border)]
            done = end
        pieces = [y for y in (*pieces, part(x, done, n)) if y.shape[axis] != 0]
        return g.concat(*pieces, axis=axis) if len(pieces) > 1 else pieces[0]

    total = part(gy, before, before + n)
    known = all(type(place) is int for a in added for place in a[:2])
    if known and not (len(added) > 1 and max(a[0] for a in added) < min(a[1] for a in added)):
        return with_added(total, sorted(added, key=lambda a: a[0])) if added else total
    for one in added:
        total = with_added(total, [one])
    return total
