"""Elements chosen by index: embedding, gather, scatter, tensors as indices."""

from __future__ import annotations

from collections.abc import Sequence

from opstep.frontends.torch.body import Body, Var, axis_of
from opstep.frontends.torch.errors import Refused, Untranslatable
from opstep.frontends.torch.rules.registry import RULES, rule
from opstep.runtime.ir.dims import Dim
from opstep.runtime.ir.types import TensorType, boolean, f64, i32, i64, u8

INDICES = (i32, i64)


def as_index(b: Body, x: Var) -> Var:
    return x if x.dtype in INDICES else b.cast(x, dtype=i64)


def ranked(b: Body, x: Var) -> Var:
    """A scalar counts as having one axis."""
    return x if x.type.rank else b.reshape(x, shape=[1])


@rule("embedding.default")
def embedding(b: Body, weight, index, padding_idx=-1, *_):
    padding = None if padding_idx < 0 else padding_idx
    return b.embedding(weight, as_index(b, index), padding_index=padding)


@rule("embedding_dense_backward.default")
def embedding_backward(b: Body, gy, index, count, padding_idx, scale_by_freq):
    if scale_by_freq:
        raise Untranslatable("scale_grad_by_freq")
    ignored = None if padding_idx < 0 else padding_idx
    return b.gather_grad(gy, as_index(b, index), size=count, axis=0, ignored=ignored)


_BAGS = ("sum", "mean", "max")


@rule("_embedding_bag.default", "_embedding_bag_forward_only.default")
def embedding_bag(
    b: Body, weight, index, offsets, scale_by_freq=False, mode=0, sparse=False, weights=None,
    include_last_offset=False, padding_idx=-1,
):  # fmt: skip
    """And for the gradient, which bag an index is in and how many each bag has, where PyTorch does
    not count them again.
    """
    if mode == 2 and b.is_used(3):
        raise Untranslatable("the rows that its elements are from")
    attrs = {"mode": _BAGS[mode], "include_last_offset": include_last_offset}
    padding = None if padding_idx < 0 else padding_idx
    index, offsets = as_index(b, index), as_index(b, offsets)
    y = b.embedding_bag(weight, index, offsets, weights, padding_index=padding, **attrs)
    if not b.is_used(1) and not b.is_used(2):
        return y, None, None, None
    if _type(b, 1).shape == (0,):
        return y, *(b.filled(_type(b, k), 0) for k in (1, 2, 3))
    places = b.iota(shape=list(index.shape), dtype=offsets.dtype)
    bag_of = b.sub(b.searchsorted(offsets, places, right=True), 1)
    counted = b.full(shape=list(index.shape), value=1, dtype=i64)
    if padding is not None:
        counted = b.cast(b.not_equal(index, padding), dtype=i64)
    none = b.full(shape=[y.shape[0]], value=0, dtype=i64)
    return y, bag_of, b.scatter_add(none, bag_of, counted), b.filled(_type(b, 3), 0)


def _type(b: Body, result: int) -> TensorType:
    found = b.expected[result]
    assert found is not None
    return found


@rule("index_select.default")
def index_select(b: Body, x, axis, index):
    picked = b.gather(ranked(b, x), as_index(b, ranked(b, index)), axis=axis)
    return b.reshaped(picked, b.out.shape)


@rule("gather.default")
def gather(b: Body, x, axis, index, *, sparse_grad=False):
    if index.type.size == 0:
        return b.filled(b.out, 0)
    if not x.type.rank:
        return b.broadcasted(x, index.shape)
    if not index.type.rank:
        return b.reshaped(gather(b, x, axis, ranked(b, index)), ())
    axis = axis_of(axis, x.type.rank)
    ends = [
        d if k == axis else i for k, (d, i) in enumerate(zip(x.shape, index.shape, strict=True))
    ]
    if ends != list(x.shape):  # PyTorch lets other axes of index be shorter
        x = b.slice(x, starts=[0] * len(ends), ends=ends)
    return b.gather_elements(x, as_index(b, index), axis=axis)


# --- written by index ---

_REDUCTIONS = {
    "add": "add", "multiply": "mul", "sum": "add", "prod": "mul", "mean": "mean", "amax": "max",
    "amin": "min",
}  # fmt: skip


def _written(b: Body, op, x: Var, axis: int, index: Var, source: Var, **attrs) -> Var:
    """A scatter, of as much of the source as the index has."""
    if index.type.size == 0:
        return x
    index, source = as_index(b, ranked(b, index)), ranked(b, b.to(source, x.dtype))
    if source.shape != index.shape:
        source = b.slice(source, starts=[0] * index.type.rank, ends=list(index.shape))
    y = op(ranked(b, x), index, source, axis=axis, **attrs)
    return b.reshaped(y, x.shape)


def _filled_source(b: Body, x: Var, index: Var, value) -> Var:
    return b.filled(index.type.with_dtype(x.dtype), value)


@rule("scatter.src")
def scatter(b: Body, x, axis, index, source):
    return _written(b, b.scatter, x, axis, index, source)


@rule("scatter.value")
def scatter_value(b: Body, x, axis, index, value):
    return scatter(b, x, axis, index, _filled_source(b, x, index, value))


@rule("scatter_add.default")
def scatter_add(b: Body, x, axis, index, source):
    if x.dtype is boolean:
        raise Untranslatable("scatter_add of bools")
    alone = _of_rows(b, x, axis, index, source)
    if alone is not None:
        return _put(b, b.index_put_add, x, axis, alone, b.to(source, x.dtype))
    return _written(b, b.scatter_add, x, axis, index, source)


def _of_rows(b: Body, x: Var, axis: int, index: Var, source: Var) -> Var | None:
    """The one index that each row of `index` repeats, as graph networks write it, if rows of the
    source are as long as those of x: whole rows are added far quicker than their elements.
    """
    own = b.repeated.get(index.name)
    if own is None or own.type.rank != x.type.rank or source.shape != index.shape:
        return None
    axis = axis_of(axis, x.type.rank)
    rest = [k for k in range(x.type.rank) if k != axis]
    whole = own.shape[axis] == index.shape[axis]
    if not whole or any(own.shape[k] != 1 or index.shape[k] != x.shape[k] for k in rest):
        return None
    return b.reshape(own, shape=[own.type.size])


@rule("scatter_reduce.two", "scatter.reduce")
def scatter_reduce(b: Body, x, axis, index, source, reduce, *, include_self=True):
    op = _REDUCTIONS[reduce]
    if op == "add" and include_self:
        return scatter_add(b, x, axis, index, source)
    attrs = {"reduction": op, "include_self": include_self}
    return _written(b, b.scatter_reduce, x, axis, index, source, **attrs)


@rule("scatter.value_reduce")
def scatter_value_reduce(b: Body, x, axis, index, value, *, reduce):
    return scatter_reduce(b, x, axis, index, _filled_source(b, x, index, value), reduce)


@rule("index_reduce.default")
def index_reduce(b: Body, x, axis, index, source, reduce, *, include_self=True):
    axis = axis_of(axis, x.type.rank)
    source = ranked(b, source)
    shape: list[Dim] = [1] * source.type.rank
    shape[axis] = source.shape[axis]
    wide = b.broadcasted(b.reshaped(index, shape), source.shape)
    return scatter_reduce(b, x, axis, wide, source, reduce, include_self=include_self)


@rule("index_add.default")
def index_add(b: Body, x, axis, index, source, *, alpha=1):
    _check_type(x, source)
    shape = list(x.shape)
    if shape:
        shape[axis] = index.type.size
    if list(source.shape) != shape:
        raise Refused(f"a source that is {source.type} for {x.type}")
    if alpha != 1:
        source = b.binary("mul", source, alpha)
    return _put(b, b.index_put_add, x, axis, index, source)


@rule("index_copy.default")
def index_copy(b: Body, x, axis, index, source):
    _check_type(x, source)
    return _put(b, b.index_put, x, axis, index, source)


def _check_type(x: Var, source: Var) -> None:
    if source.dtype is not x.dtype:
        raise Refused(f"a source of {source.dtype} for elements of {x.dtype}")


@rule("index_fill.int_Scalar", "index_fill.int_Tensor")
def index_fill(b: Body, x, axis, index, value):
    return _put(b, b.index_put, x, axis, index, b.scalar(value, x.dtype))


def _put(b: Body, op, x: Var, axis: int, index: Var, source) -> Var:
    """Along one axis."""
    index = as_index(b, ranked(b, index))
    y = op(ranked(b, x), source, index, axes=[axis_of(axis, x.type.rank)])
    return b.reshaped(y, x.shape)


@rule("put.default")
def put(b: Body, x, index, source, accumulate=False):
    flat, source = (b.reshape(t, shape=[t.type.size]) for t in (x, source))
    index = as_index(b, b.reshape(index, shape=[index.type.size]))
    y = (b.index_put_add if accumulate else b.index_put)(flat, source, index, axes=[0])
    return b.reshaped(y, x.shape)


# --- tensors as indices ---


@rule("index.Tensor", "_unsafe_index.Tensor")
def index(b: Body, x, indices):
    axes, tensors = _chosen(b, indices)
    if len(axes) == 1:
        return b.gather(x, tensors[0], axis=axes[0])
    return b.index(x, *tensors, axes=axes)


def _is_mask(t: Var | None) -> bool:
    return t is not None and t.dtype in (boolean, u8)


def _chosen(b: Body, indices: Sequence[Var | None]) -> tuple[list[int], list[Var]]:
    """Axes that are indexed, and by what."""
    if any(map(_is_mask, indices)):
        raise Untranslatable("how many elements a mask chooses depends on data")
    axes = [k for k, t in enumerate(indices) if t is not None]
    return axes, [as_index(b, t) for t in indices if t is not None]


@rule("index_put.default", "_unsafe_index_put.default", "index_put_.default")
def index_put(b: Body, x, indices, values, accumulate=False):
    values = b.to(values, x.dtype)
    if any(map(_is_mask, indices)):
        return _masked_put(b, x, indices, values, accumulate)
    axes, tensors = _chosen(b, indices)
    if not tensors:
        chosen = b.add(x, values) if accumulate else values
        return b.broadcasted(chosen, x.shape)
    if accumulate and x.dtype is boolean:
        return b.logical_or(x, b.index_put(b.filled(x.type, 0), values, *tensors, axes=axes))
    put = b.index_put_add if accumulate else b.index_put
    return put(x, values, *tensors, axes=axes)


def _masked_put(b: Body, x, indices, values, accumulate):
    """`x[:, mask] = values`: each value is for all chosen elements, or there is one for each."""
    (mask, *others) = [t for t in indices if t is not None]
    if others:
        raise Untranslatable("a mask beside other indices")
    before = next(k for k, t in enumerate(indices) if t is mask)
    after = x.type.rank - before - mask.type.rank
    mask = b.to(mask, boolean)
    shape = [1] * (before + 1 + after - values.type.rank) + list(values.shape)
    wide = b.reshaped(mask, [*mask.shape, *[1] * after])
    if shape[before] == 1:
        rows = b.reshaped(values, shape[:before] + [1] * mask.type.rank + shape[before + 1 :])
        return b.where(wide, b.add(x, rows) if accumulate else rows, x)
    if before:
        raise Untranslatable("a value for each element that a mask chooses in later axes")
    values = b.broadcasted(values, [shape[0], *x.shape[mask.type.rank :]])
    wide = b.broadcasted(wide, x.shape)
    if accumulate:
        return b.add(x, b.masked_scatter(b.filled(x.type, 0), wide, values))
    return b.masked_scatter(x, wide, values)


@rule("bincount.default")
def bincount(b: Body, x, weights=None, minlength=0):
    """Where other ops decide how many numbers are counted."""
    (count,) = b.out.shape
    fits = b.all(b.less(x, count))
    RULES["_assert_async.msg"](b, fits, "bincount: a number is larger than the others allow")
    values = b.filled(TensorType(b.out.dtype, x.shape), 1) if weights is None else weights
    return b.scatter_add(b.filled(b.out, 0), as_index(b, x), b.to(values, b.out.dtype))


@rule("masked_scatter.default")
def masked_scatter(b: Body, x, mask, source):
    if mask.dtype is not boolean:
        raise Refused(f"a mask of {mask.dtype}")
    mask = b.broadcasted(mask, b.out.shape)
    fits = b.less_equal(b.sum(b.to(mask, i64)), b.number(source.type.size))
    RULES["_assert_async.msg"](b, fits, "masked_scatter: there are too few elements to write")
    return b.masked_scatter(b.broadcasted(x, b.out.shape), mask, b.to(source, x.dtype))


# --- places in sorted sequences ---


@rule("bucketize.Tensor", "bucketize.Scalar")
def bucketize(b: Body, x, boundaries, *, out_int32=False, right=False):
    return searchsorted(b, boundaries, x, right=right)


@rule("searchsorted.Tensor", "searchsorted.Scalar")
def searchsorted(b: Body, sequence, x, *, out_int32=False, right=False, side=None, sorter=None):
    if sorter is not None:
        sequence = b.gather_elements(sequence, as_index(b, sorter), axis=sequence.type.rank - 1)
    if not isinstance(x, Var):
        dtype = f64 if isinstance(x, float) else sequence.dtype
        x = b.full(shape=[], value=x, dtype=dtype)
    values = x if sequence.type.rank == 1 else ranked(b, x)
    y = b.searchsorted(sequence, values, right=right or side == "right")
    return b.to(b.reshaped(y, b.out.shape), b.out.dtype)


@rule("repeat_interleave.Tensor")
def repeat_interleave(b: Body, repeats, *, output_size=None):
    """For each of the elements of the result, which one it repeats."""
    ends = b.cumsum(repeats, axis=0)
    place = b.iota(shape=[b.out.shape[0], 1], dtype=ends.dtype)
    return b.to(b.sum(b.greater_equal(place, ends), axes=[1]), b.out.dtype)
