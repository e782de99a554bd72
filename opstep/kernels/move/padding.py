"""Padding with a constant or with elements of the tensor: pad."""

from __future__ import annotations

import numpy as np

from opstep.kernels.move.borders import padded
from opstep.kernels.rules.literals import bits_of, check_value
from opstep.runtime.ir.dims import Dim
from opstep.runtime.ir.op import Mismatch, Op, Traits

MODES = ("constant", "reflect", "edge", "wrap")


class pad(Op):
    """x with padding: `pads` has the amounts before each axis, then those after each; negative
    amounts crop.

    Modes: constant (`value`), reflect (mirrored at the outermost element, which is not repeated),
    edge (repeats the outermost element), wrap (periodic).
    """

    signature = 'pad(x: T, *, pads: dims, mode: str = "constant", value: number = 0)'
    choices = {"mode": MODES}
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
        bits = bits_of(value, x.dtype) if mode == "constant" else 0
        return padded(x, y, pads[: x.rank], mode, bits)

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
