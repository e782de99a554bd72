"""Shapes and positions: views, slices, joins, and what is made of nothing."""

from __future__ import annotations

from functools import partial
from typing import Any

from opstep.frontends.torch.body import Body, Var, axes_of, axis_of
from opstep.frontends.torch.errors import Untranslatable
from opstep.frontends.torch.rules.registry import RULES, rule
from opstep.runtime.ir.dims import Dim
from opstep.runtime.ir.op import OPS
from opstep.runtime.ir.types import boolean, i64

LAST = (1 << 63) - 1  # the end of a slice that has none


@rule(
    "view.default", "reshape.default", "_unsafe_view.default", "view_copy.default",
    "flatten.using_ints", "unflatten.int", "_reshape_alias.default", "view_as.default",
    "squeeze.default", "squeeze.dim", "squeeze.dims", "unsqueeze.default", "unsqueeze_copy.default",
)  # fmt: skip
def view(b: Body, x, *_, **__):
    return b.reshaped(x, b.out.shape)


@rule("view.dtype", "view_copy.dtype")
def view_as_dtype(b: Body, x, dtype):
    if b.out.dtype is boolean:
        raise Untranslatable("bits as truth values")
    return b.bitcast(x, dtype=b.out.dtype)


@rule("expand.default", "expand_as.default", "broadcast_to.default", "expand_copy.default")
def expand(b: Body, x, *_, **__):
    return b.broadcasted(x, b.out.shape)


@rule("permute.default", "permute_copy.default")
def permute(b: Body, x, perm):
    perm = [axis_of(a, x.type.rank) for a in perm]
    return x if perm == sorted(perm) else b.transpose(x, perm=perm)


@rule("transpose.int", "swapaxes.default", "transpose_copy.int")
def transpose(b: Body, x, first, second):
    perm = list(range(x.type.rank))
    if perm:
        first, second = axis_of(first, len(perm)), axis_of(second, len(perm))
        perm[first], perm[second] = second, first
    return permute(b, x, perm)


@rule("t.default", "numpy_T.default", "mT.default")
def matrix_transpose(b: Body, x):
    return transpose(b, x, -1, -2) if x.type.rank > 1 else x


@rule("cat.default", "concat.default", "concatenate.default")
def cat(b: Body, tensors, axis=0):
    dtype = b.out.dtype
    used = [b.to(t, dtype) for t in tensors if t.shape != (0,)]  # which join with any shape
    if len(used) < 2:
        return used[0] if used else b.filled(b.out, 0)
    return b.concat(*used, axis=axis)


@rule("stack.default")
def stack(b: Body, tensors, axis=0):
    return b.stack(*(b.to(t, b.out.dtype) for t in tensors), axis=axis)


@rule(
    "split.Tensor",
    "split_with_sizes.default",
    "chunk.default",
    "split.sizes",
    "tensor_split.sections",
)
def split(b: Body, x, _=None, axis=0, **__):
    axis = axis_of(axis, x.type.rank)
    if len(b.expected) == 1:
        return (x,)
    return b.split(x, sizes=[t.shape[axis] for t in b.expected if t is not None], axis=axis)


@rule("unbind.int")
def unbind(b: Body, x, axis=0):
    return tuple(b.select(x, index=k, axis=axis) for k in range(len(b.expected)))


@rule("select.int", "select_copy.int")
def select(b: Body, x, axis, index):
    return b.select(x, index=index, axis=axis)


@rule("narrow.default")
def narrow(b: Body, x, axis, start, length):
    return slice_(b, x, axis, start, start + length)


@rule("slice.Tensor", "slice_copy.Tensor")
def slice_(b: Body, x, axis=0, start=None, end=None, step=1):
    start, end = _bounds(x.shape[axis], start, end)
    if step == 1 and start == 0 and b.out.shape == x.shape:
        return x
    attrs = {"starts": [start], "ends": [end], "axes": [axis]}
    return b.slice(x, **attrs, **({} if step == 1 else {"steps": [step]}))


def _bounds(size: Dim, start, end) -> tuple[Dim, Dim]:
    start = 0 if start is None else start
    end = size if end is None or (isinstance(end, int) and end >= LAST) else end
    if isinstance(start, int) and start < 0 and isinstance(size, int):
        start = max(start + size, 0)
    if isinstance(end, int) and isinstance(size, int):
        end = min(end, size) if end >= 0 else max(end + size, 0)
    return start, end


@rule("slice_scatter.default")
def slice_scatter(b: Body, x, source, axis=0, start=None, end=None, step=1):
    start, end = _bounds(x.shape[axis], start, end)
    source = b.to(source, x.dtype)
    if step == 1 and start == 0 and end == x.shape[axis]:
        return b.broadcasted(source, x.shape)
    attrs = {"starts": [start], "ends": [end], "axes": [axis], "steps": [step]}
    return b.slice_scatter(x, source, **attrs)


@rule("select_scatter.default")
def select_scatter(b: Body, x, source, axis, index):
    source = b.unsqueeze(b.to(source, x.dtype), axes=[axis_of(axis, x.type.rank)])
    end = index + 1 if index != -1 else x.shape[axis]
    return b.slice_scatter(x, source, starts=[index], ends=[end], axes=[axis])


@rule("diagonal.default", "diagonal_copy.default")
def diagonal(b: Body, x, offset=0, first=0, second=1):
    return b.diagonal(x, offset=offset, axes=[first, second])


@rule("diagonal_scatter.default")
def diagonal_scatter(b: Body, x, source, offset=0, first=0, second=1):
    return b.diagonal_scatter(x, source, offset=offset, axes=[first, second])


@rule("flip.default")
def flip(b: Body, x, axes):
    return b.flip(x, axes=axes_of(axes, x.type.rank)) if axes else x


@rule("roll.default")
def roll(b: Body, x, shifts, axes=()):
    shifts = [shifts] if isinstance(shifts, int) else list(shifts)
    axes = [axes] if isinstance(axes, int) else list(axes)
    if axes:
        return b.roll(x, shifts=shifts, axes=axes)
    flat = b.roll(b.reshape(x, shape=[x.type.size]), shifts=shifts, axes=[0])
    return b.reshaped(flat, x.shape)


@rule("repeat.default", "tile.default")
def repeat(b: Body, x, repeats):
    return (
        x
        if all(r == 1 for r in repeats) and len(repeats) <= x.type.rank
        else b.tile(x, repeats=list(repeats))
    )


@rule("repeat_interleave.self_int")
def repeat_interleave(b: Body, x, repeats, axis=None, *, output_size=None):
    if axis is None:
        x, axis = b.reshape(x, shape=[x.type.size]), 0
    axis = axis_of(axis, x.type.rank)
    shape = list(x.shape)
    wide = b.reshape(x, shape=[*shape[: axis + 1], 1, *shape[axis + 1 :]])
    wide = b.broadcast(wide, shape=[*shape[: axis + 1], repeats, *shape[axis + 1 :]])
    return b.reshape(wide, shape=[*shape[:axis], shape[axis] * repeats, *shape[axis + 1 :]])


RULES["tril.default"] = lambda b, x, diagonal=0: b.tril(x, diagonal=diagonal)
RULES["triu.default"] = lambda b, x, diagonal=0: b.triu(x, diagonal=diagonal)


@rule("as_strided.default", "as_strided_copy.default")
def as_strided(b: Body, x, size, stride, offset=None):
    x = _as_in_memory(b, x)
    if _is_whole(x, size, stride, offset):
        return b.reshaped(x, size)
    flat = b.reshape(x, shape=[x.type.size])
    return b.gather(flat, _strided_places(b, size, stride, offset or 0))


@rule("as_strided_scatter.default", "prims::as_strided_scatter.default")
def as_strided_scatter(b: Body, x, source, size, stride, offset=None):
    x = _as_in_memory(b, x)
    if _is_whole(x, size, stride, offset):
        y = b.reshaped(source, x.shape)
    else:
        flat = b.reshape(x, shape=[x.type.size])
        places = _strided_places(b, size, stride, offset or 0)
        y = b.reshaped(b.index_put(flat, b.to(source, x.dtype), places, axes=[0]), x.shape)
    order = b.memory_order or []
    return permute(b, y, [order.index(k) for k in range(len(order))])


def _as_in_memory(b: Body, x: Var) -> Var:
    """x with its axes as they lie in memory."""
    if b.memory_order is None:
        raise Untranslatable("as_strided of a part of a tensor")
    return permute(b, x, b.memory_order)


def _is_whole(x: Var, size, stride, offset) -> bool:
    """Whether that is all of a tensor, in order; the steps along axes of one do not count."""
    n = 1
    for d, step in zip(reversed(size), reversed(stride), strict=True):
        if d != 1 and step != n:
            return False
        n = n * d
    return not offset and n == x.type.size


def _strided_places(b: Body, size, stride, offset) -> Var:
    place = b.full(shape=[], value=offset, dtype=i64)
    for k, (d, step) in enumerate(zip(size, stride, strict=True)):
        shape = [1] * k + [d] + [1] * (len(size) - k - 1)
        place = b.add(place, b.iota(shape=shape, axis=k, step=step))
    return b.broadcasted(place, size)


@rule("unfold.default", "unfold_copy.default")
def unfold(b: Body, x, axis, size, step):
    axis, rank = axis_of(axis, x.type.rank), max(x.type.rank, 1)
    if not x.type.rank:
        x = b.reshape(x, shape=[1])
    count = (x.shape[axis] - size) // step + 1
    starts = b.iota(shape=[count, 1], step=step)
    windows = b.gather(x, b.add(starts, b.iota(shape=[1, size], axis=1)), axis=axis)
    rest = [k for k in range(rank + 1) if k != axis + 1]
    return b.reshaped(permute(b, windows, [*rest, axis + 1]), b.out.shape)


@rule("constant_pad_nd.default")
def constant_pad(b: Body, x, pads, value=0):
    return pad(b, x, pads, "constant", value)


@rule("pad.default")
def pad(b: Body, x, pads, mode="constant", value=None):
    if all(isinstance(p, int) and p == 0 for p in pads):
        return x
    pads = _pads(x, pads)
    if mode == "constant":
        return b.pad(x, pads=pads, value=b.fitting(0 if value is None else value, x.dtype))
    crops, cropped = any(_cropped(pads)), {"pads": _cropped(pads)}
    if crops and mode == "circular":
        x = b.pad(x, **cropped)
    x = b.pad(x, pads=_grown(pads), mode=_MODES[mode])
    return b.pad(x, **cropped) if crops and mode != "circular" else x


# Amounts below 0 crop: circular padding repeats what is left, others x as it was.
_MODES = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}


def _pads(x: Var, pads) -> list[Dim]:
    """As ours are: those before each axis, then those after each."""
    rank = x.type.rank
    before, after = [0] * rank, [0] * rank
    for k in range(len(pads) // 2):
        before[rank - 1 - k], after[rank - 1 - k] = pads[2 * k], pads[2 * k + 1]
    return [*before, *after]


def _cropped(pads: list[Dim]) -> list[Dim]:
    return [min(p, 0) if isinstance(p, int) else 0 for p in pads]


def _grown(pads: list[Dim]) -> list[Dim]:
    return [max(p, 0) if isinstance(p, int) else p for p in pads]


def pad_backward(b: Body, gy, x, pads, mode):
    pads = _pads(x, pads)
    crops, back = any(_cropped(pads)), {"pads": [-p for p in _cropped(pads)]}
    if crops and mode == "circular":
        x = b.pad(x, pads=_cropped(pads))
    elif crops:
        gy = b.pad(gy, **back)
    attrs = {"pads": _grown(pads), "mode": _MODES[mode], "value": 0}
    (gx,) = OPS["pad"].grad(b, (x,), (), (gy,), **attrs)
    return b.pad(gx, **back) if crops and mode == "circular" else gx


for _mode, _name in (("reflect", "reflection"), ("replicate", "replication")):
    for _k in (1, 2, 3):
        RULES[f"{_name}_pad{_k}d.default"] = partial(pad, mode=_mode)
        RULES[f"{_name}_pad{_k}d_backward.default"] = partial(pad_backward, mode=_mode)


# --- made of nothing ---


@rule("full.default", "new_full.default", "full_like.default", "scalar_tensor.default")
def full(b: Body, *arguments: Any, **_):
    value = arguments[-1]
    return b.filled(b.out, value if b.out.shape else b.rounded(value, b.out.dtype))


RULES["full_like.default"] = lambda b, x, value, **_: full(b, value)


for _value, _names in (
    (0, "zeros.default zeros_like.default new_zeros.default _efficientzerotensor.default"),
    (1, "ones.default ones_like.default new_ones.default"),
    (0, "empty.memory_format empty_like.default new_empty.default empty_strided.default"),
    (0, "new_empty_strided.default empty_permuted.default"),
):
    rule(*_names.split())(partial(lambda value, b, *_, **__: b.filled(b.out, value), _value))


@rule("fill.Scalar", "fill.Tensor")
def fill(b: Body, x, value):
    return full(b, value)


@rule("arange.default", "arange.start", "arange.start_step")
def arange(b: Body, *bounds, **_):
    return _counted(b, bounds[0] if len(bounds) > 1 else 0, bounds[2] if len(bounds) > 2 else 1)


@rule("prims::iota.default")
def iota(b: Body, length, *, start, step, **_):
    return _counted(b, start, step)


def _counted(b: Body, start, step):
    shape, dtype = list(b.out.shape), b.out.dtype
    if isinstance(start, int | float) and isinstance(step, int | float):
        start, step = b.fitting(start, dtype), b.fitting(step, dtype)
        return b.iota(shape=shape, start=start, step=step, dtype=dtype)
    counted = b.iota(shape=shape, dtype=i64)
    return b.to(b.add(b.mul(counted, b.number(step)), b.number(start)), dtype)


@rule("eye.default", "eye.m")
def eye(b: Body, *_, **__):
    return b.eye(shape=list(b.out.shape), dtype=b.out.dtype)


@rule("one_hot.default")
def one_hot(b: Body, x, classes=-1):
    return b.one_hot(x, classes=b.out.shape[-1], dtype=b.out.dtype)


def true_places(b: Body, mask: Var, count) -> Var:
    """Where a mask, of which it is known that it has `count` true elements, is true, flattened."""
    order = b.argsort(b.reshape(mask, shape=[mask.type.size]), descending=True)
    return b.slice(order, starts=[0], ends=[count])


def _triangle(op: str):
    """PyTorch's definition divides by sizes, which may be 0."""

    def translated(b: Body, rows, columns, offset=0, **_):
        if 0 in b.out.shape:
            return b.filled(b.out, 0)
        whole = b.full(shape=[rows, columns], value=1, dtype=boolean)
        places = true_places(b, getattr(b, op)(whole, diagonal=offset), b.out.shape[1])
        return b.to(b.stack(b.floor_div(places, columns), b.rem(places, columns)), b.out.dtype)

    return translated


RULES["tril_indices.default"], RULES["triu_indices.default"] = _triangle("tril"), _triangle("triu")
