"""Which elements an index selects: what reading and writing by index share.

JAX's gather and scatter take windows at places along some axes. Here each such axis gets an index
tensor, [batch…, windows…], as NumPy's advanced indexing has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from opstep.frontends.jax.body import Body, Dim, Var
from opstep.frontends.jax.rules.pointwise import widened
from opstep.frontends.jax.types import UNSIGNED
from opstep.kernels.rules.literals import limits
from opstep.runtime.ir.graph import Name
from opstep.runtime.ir.types import i32, i64


class Selected(NamedTuple):
    """`axes`: those of x with an index, in order; `labels`: what the axes of what is selected
    stand for: ("batch", k), or ("axis", k) for one of x.
    """

    axes: list[int]
    indices: list[Var]
    labels: list[tuple[str, int]]


class Places(NamedTuple):
    """What JAX says of an index: `start`: axes of x that its components are for; `batching`: pairs
    of an axis of x and of the index that go along; `dropped`: axes of x without one in a window;
    `window`: its size along each axis of x; `mode`: what becomes of places outside.
    """

    start: list[int]
    batching: list[tuple[int, int]]
    dropped: list[int]
    window: list[Dim]
    mode: str


def pairs(ours: Sequence[Any], theirs: Sequence[Any]) -> list[tuple[int, int]]:
    return [(int(a), int(b)) for a, b in zip(ours, theirs, strict=True)]


def selected(b: Body, x: Var, index: Var, places: Places) -> Selected:
    """`index`: [batch…, K]."""
    batch = list(index.shape[:-1])
    starts = dict(zip(places.start, components(b, index, len(places.start)), strict=True))
    along = dict(places.batching)
    kept = [k for k in range(x.type.rank) if k not in places.dropped and k not in along]
    partial = [k for k in kept if k in starts or places.window[k] != x.shape[k]]
    rank = len(batch) + len(partial)
    indices = []
    axes = sorted({*starts, *along, *partial})
    for axis in axes:
        window = places.window[axis]
        place = starts.get(axis)
        if place is not None:
            place = start_of(b, x.shape[axis], place, window, places.mode)
        if axis in along:
            place = _counted(b, batch[along[axis]], along[axis], rank)
        elif axis in partial:
            turn = _counted(b, window, len(batch) + partial.index(axis), rank) if window != 1 else 0
            if place is None:
                place = turn if isinstance(turn, Var) else b.zeros(shape=[1] * rank, dtype=i64)
            else:
                place = b.reshaped(place, [*place.shape, *[1] * len(partial)])
                place = b.add(place, b.to(turn, place.dtype)) if isinstance(turn, Var) else place
        elif partial and place is not None:
            place = b.reshaped(place, [*place.shape, *[1] * len(partial)])
        assert place is not None
        indices.append(place)
    own = [("batch", k) for k in range(len(batch))] + [("axis", k) for k in partial]
    full = [("axis", k) for k in kept if k not in partial]
    neighbours = not axes or axes[-1] - axes[0] == len(axes) - 1
    before = sum(k < axes[0] for _, k in full) if neighbours and axes else 0
    return Selected(axes, indices, [*full[:before], *own, *full[before:]])


def _counted(b: Body, count: Dim, place: int, rank: int) -> Var:
    """0, 1, … along one of so many axes."""
    shape: list[Dim] = [1] * rank
    shape[place] = count
    return b.iota(shape=shape, axis=place, dtype=i32)


def components(b: Body, index: Var, count: int) -> list[Var]:
    """The parts of an index along its last axis."""
    batch = index.shape[:-1]
    made = b.made_by(index) if isinstance(index, Var) else None
    if made is not None and made.callee.text == "concat" and len(made.operands) == count > 1:
        named = [b.known_types.get(o.text) for o in made.operands if isinstance(o, Name)]
        parts = [v for v in named if v is not None and v.shape == (*batch, 1)]
        if len(parts) == count and made.attrs and made.attrs[0].value in (-1, len(batch)):
            return [_without(b, p, batch) for p in parts]
    if count == 1:
        return [_without(b, index, batch)]
    return [b.select(index, index=k, axis=len(batch)) for k in range(count)]


def _without(b: Body, x: Var, shape: Sequence[Dim]) -> Var:
    """x without its last axis, which is 1."""
    source = b.source(x, "reshape")
    if source is not None and source[0].shape == tuple(shape):
        return source[0]
    return b.reshaped(x, list(shape))


def start_of(b: Body, size: Dim, place: Var, window: Dim, mode: str) -> Var:
    """A place as our ops take it: those outside are where nothing is, or moved inside."""
    place = as_index(b, place, b.ins[1])
    last = size - window
    if "CLIP" not in mode and window == 1 and (raw := from_end(b, place, size)) is not None:
        return raw
    if "FILL" not in mode:  # JAX moves inside what is promised to be there, too
        if isinstance(last, int):
            return b.clip(place, low=0, high=last)
        return b.minimum(b.maximum(place, 0), b.size(last, place.dtype))
    end = b.size(size, place.dtype)
    outside = b.less(place, 0)
    if window != 1:
        outside = b.logical_or(outside, b.greater(place, b.size(last, place.dtype)))
    return b.where(outside, end, place)


def as_index(b: Body, place: Any, aval: Any) -> Any:
    """An index as i32 or i64, or a number. Unsigned ones, held as signed, are not below 0."""
    bits = UNSIGNED.get(str(aval.dtype))
    if not isinstance(place, Var):
        return place % (1 << bits) if bits else place
    if bits == 64:
        return b.where(b.less(place, 0), limits(i64)[1], place)
    return b.index(widened(b, place, bits) if bits else place)


def from_end(b: Body, place: Var, size: Dim) -> Var | None:
    """The index of which `place` is ``where(index < 0, index + size, index)``: our ops count from
    the end themselves.
    """
    made = b.made_by(place)
    if made is None or made.callee.text != "where" or len(made.operands) != 3:
        return None
    names = [o.text if isinstance(o, Name) else "" for o in made.operands]
    raw = b.known_types.get(names[2])
    if raw is None or raw.dtype not in (i32, i64) or raw.shape != place.shape:
        return None
    below, moved = (b.made_by(b.known_types[n]) if n in b.known_types else None for n in names[:2])
    if below is None or moved is None:
        return None
    is_below = below.callee.text == "less" and _is(below.operands, names[2], 0)
    is_moved = moved.callee.text == "add" and _is(moved.operands, names[2], size)
    return raw if is_below and is_moved else None


def _is(operands: Sequence[Any], name: str, number: Any) -> bool:
    first, second = operands
    is_value = isinstance(first, Name) and first.text == name
    return is_value and getattr(second, "value", None) == number
