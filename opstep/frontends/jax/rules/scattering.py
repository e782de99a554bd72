"""Elements written by index."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from opstep.frontends.jax.body import Body, Var
from opstep.frontends.jax.errors import Untranslatable
from opstep.frontends.jax.rules.indexing import places_from
from opstep.frontends.jax.rules.registry import add, rule
from opstep.frontends.jax.rules.selection import Places, Selected, as_index, pairs, selected
from opstep.runtime.ir.types import boolean, i64

WAYS = {
    "scatter": "", "scatter-add": "add", "scatter_add": "add", "scatter-sub": "sub",
    "scatter_sub": "sub", "scatter-mul": "mul", "scatter_mul": "mul", "scatter-min": "min",
    "scatter_min": "min", "scatter-max": "max", "scatter_max": "max",
}  # fmt: skip


def _selection(b: Body, x: Var, index: Var, updates: Var, d: Any, mode: Any) -> Selected:
    batching = pairs(d.operand_batching_dims, d.scatter_indices_batching_dims)
    dropped = list(map(int, d.inserted_window_dims))
    kept = [k for k in range(x.type.rank) if k not in dropped and k not in dict(batching)]
    window: list[Any] = [1] * x.type.rank
    for place, axis in zip(d.update_window_dims, kept, strict=True):
        window[axis] = updates.shape[place]
    start = list(map(int, d.scatter_dims_to_operand_dims))
    mode = "CLIP" if "CLIP" in str(mode) else "FILL"  # what is outside is left out
    return selected(b, x, index, Places(start, batching, dropped, window, mode))


def _ordered(b: Body, x: Var, updates: Var, d: Any, found: Selected) -> Var:
    """The updates, with axes as what is selected has them."""
    batching = set(map(int, d.operand_batching_dims))
    kept = [k for k in range(x.type.rank) if k not in batching and k not in d.inserted_window_dims]
    labels: list[Any] = [None] * updates.type.rank
    for place, axis in zip(d.update_window_dims, kept, strict=True):
        labels[place] = ("axis", axis)
    rest = iter(range(updates.type.rank))
    labels = [label or ("batch", next(rest)) for label in labels]
    return b.transposed(updates, [labels.index(label) for label in found.labels])


def _scatter(way: str) -> Callable[..., Any]:
    def made(
        b: Body, x: Var, index: Var, updates: Var, *, dimension_numbers: Any, mode: Any,
        update_jaxpr: Any = None, update_consts: Any = (),
    ) -> Var:  # fmt: skip
        d = dimension_numbers
        found = _selection(b, x, index, updates, d, mode)
        source = _ordered(b, x, updates, d, found)
        if not found.axes:
            return _whole(b, x, source, way)
        if way in ("mul", "min", "max"):
            return _reduced(b, x, source, found, way)
        attrs: dict[str, Any] = {}
        if found.axes != list(range(len(found.axes))):
            attrs["axes"] = found.axes
        if x.dtype is boolean and way:
            raise Untranslatable("sums of bools")
        source = b.neg(source) if way == "sub" else source
        return b.op("index_put_add" if way else "index_put", x, source, *found.indices, **attrs)

    return made


for _name, _way in WAYS.items():
    add(_name, _scatter(_way), values=_way in ("min", "max"))


def _whole(b: Body, x: Var, source: Var, way: str) -> Var:
    """Of all elements at once."""
    ops = {"add": "add", "sub": "sub", "mul": "mul", "min": "minimum", "max": "maximum"}
    return b.op(ops[way], x, source) if way else source


def _reduced(b: Body, x: Var, source: Var, found: Selected, way: str) -> Var:
    """By the places of elements in x, flattened; what is outside goes to one behind it."""
    rank = source.type.rank
    full = [k for k in range(x.type.rank) if k not in found.axes]
    own = [k for k, (kind, axis) in enumerate(found.labels) if kind == "batch" or axis not in full]
    place: Any = 0
    inside: Any = None
    step: Any = 1
    for axis in reversed(range(x.type.rank)):
        if axis in full:
            shape: list[Any] = [1] * rank
            shape[found.labels.index(("axis", axis))] = x.shape[axis]
            part = b.iota(shape=shape, axis=found.labels.index(("axis", axis)), dtype=i64)
        else:
            part = b.to(found.indices[found.axes.index(axis)], i64)
            shape = [1] * rank
            for k, d in zip(own, part.shape, strict=True):
                shape[k] = d
            part = b.reshaped(part, shape)
            part = b.where(b.less(part, 0), b.add(part, x.shape[axis]), part)
            fits = b.logical_and(b.greater_equal(part, 0), b.less(part, x.shape[axis]))
            inside = fits if inside is None else b.logical_and(inside, fits)
        part = b.mul(part, step) if step != 1 else part
        place = part if not isinstance(place, Var) else b.add(place, part)
        step = step * x.shape[axis]
    count = prod(x.shape)  # pyright: ignore[reportCallIssue, reportArgumentType]
    place = b.where(inside, place, count)
    flat = b.reshape(x, shape=[count])
    longer = b.pad(flat, pads=[0, 1])
    place = b.reshape(b.broadcasted(place, source.shape), shape=[prod(source.shape)])  # pyright: ignore
    source = b.reshape(source, shape=[prod(source.shape)])  # pyright: ignore
    y = b.scatter_reduce(longer, place, source, reduction=way)
    return b.reshape(b.slice(y, starts=[0], ends=[count]), shape=list(x.shape))


@rule("dynamic_update_slice", numbers=True)
def dynamic_update_slice(b: Body, x: Any, update: Any, *starts: Any) -> Var:
    x, update = b.of_dtype(x, b.out.dtype), b.of_dtype(update, b.out.dtype)
    x = b.broadcasted(x, b.out.shape)
    update = b.broadcasted(update, b.types_in[1].shape)
    starts = tuple(as_index(b, s, b.ins[-1]) for s in starts)
    axes = [k for k in range(x.type.rank) if update.shape[k] != x.shape[k]]
    if not axes:
        return update
    if all(isinstance(starts[k], int) and isinstance(x.shape[k], int) for k in axes):
        firsts = [min(max(starts[k], 0), x.shape[k] - update.shape[k]) for k in axes]  # pyright: ignore
        ends = [f + update.shape[k] for f, k in zip(firsts, axes, strict=True)]
        return b.slice_scatter(x, update, starts=firsts, ends=ends, axes=axes)
    axes = list(range(axes[0], axes[-1] + 1))  # neighbours: what is selected stays in order
    indices = []
    for turn, axis in enumerate(axes):
        start = starts[axis] if isinstance(starts[axis], Var) else b.of_dtype(starts[axis], i64)
        places = places_from(b, start, x.shape[axis], update.shape[axis], axis)
        indices.append(b.reshaped(places, [update.shape[axis], *[1] * (len(axes) - 1 - turn)]))
    attrs = {} if axes == list(range(len(axes))) else {"axes": axes}
    return b.op("index_put", x, update, *indices, **attrs)
