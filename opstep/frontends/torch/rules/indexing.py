"""Elements chosen by index: embedding, gather, scatter, tensors as indices."""

from __future__ import annotations

from collections.abc import Sequence

from opstep.frontends.torch.body import Body, Var, axis_of
from opstep.frontends.torch.errors import Untranslatable
from opstep.frontends.torch.rules.registry import rule
from opstep.runtime.ir.types import boolean, i32, i64

INDICES = (i32, i64)


def _index(b: Body, x: Var) -> Var:
    return x if x.dtype in INDICES else b.cast(x, dtype=i64)


@rule("embedding.default")
def embedding(b: Body, weight, index, padding_idx=-1, *_):
    padding = {} if padding_idx < 0 else {"padding_index": padding_idx}
    return b.embedding(weight, _index(b, index), **padding)


@rule("embedding_dense_backward.default")
def embedding_backward(b: Body, gy, index, count, padding_idx, scale_by_freq):
    if scale_by_freq:
        raise Untranslatable("scale_grad_by_freq")
    ignored = {} if padding_idx < 0 else {"ignored": padding_idx}
    return b.gather_grad(gy, _index(b, index), size=count, axis=0, **ignored)


@rule("index_select.default")
def index_select(b: Body, x, axis, index):
    return b.gather(x, _index(b, index), axis=axis)


@rule("gather.default")
def gather(b: Body, x, axis, index, *, sparse_grad=False):
    if not x.type.rank:
        return b.broadcasted(x, index.shape)
    axis = axis_of(axis, x.type.rank)
    ends = [
        d if k == axis else i for k, (d, i) in enumerate(zip(x.shape, index.shape, strict=True))
    ]
    if ends != list(x.shape):  # PyTorch lets other axes of index be shorter
        x = b.slice(x, starts=[0] * len(ends), ends=ends)
    return b.gather_elements(x, _index(b, index), axis=axis)


@rule("take_along_dim.default")
def take_along_dim(b: Body, x, index, axis=None):
    if axis is None:
        return b.gather(b.reshape(x, shape=[x.type.size]), _index(b, index))
    return gather(b, x, axis, index)


@rule("scatter.src")
def scatter(b: Body, x, axis, index, source):
    return b.scatter(x, _index(b, index), _fitted(b, source, x, index), axis=axis)


@rule("scatter.value")
def scatter_value(b: Body, x, axis, index, value):
    whole = float(value) if x.dtype.is_float else int(value)
    source = b.full(shape=list(index.shape), value=whole, dtype=x.dtype)
    return b.scatter(x, _index(b, index), source, axis=axis)


@rule("scatter_add.default")
def scatter_add(b: Body, x, axis, index, source):
    return b.scatter_add(x, _index(b, index), _fitted(b, source, x, index), axis=axis)


@rule("index_add.default")
def index_add(b: Body, x, axis, index, source, *, alpha=1):
    axis = axis_of(axis, x.type.rank)
    source = b.to(source, x.dtype)
    if alpha != 1:
        source = b.mul(source, alpha)
    shape = [1] * x.type.rank
    shape[axis] = index.shape[0]
    wide = b.broadcast(b.reshape(_index(b, index), shape=shape), shape=list(source.shape))
    return b.scatter_add(x, wide, source, axis=axis)


def _fitted(b: Body, source: Var, x: Var, index: Var) -> Var:
    """As much of the source as the index has."""
    source = b.to(source, x.dtype)
    if source.shape == index.shape:
        return source
    return b.slice(source, starts=[0] * index.type.rank, ends=list(index.shape))


@rule("index.Tensor", "_unsafe_index.Tensor")
def index(b: Body, x, indices):
    axes, tensors = _chosen(b, indices)
    if len(axes) == 1:
        return _gathered(b, x, axes[0], tensors[0])
    moved, front = _moved(b, x, axes)
    positions = _positions(b, x, axes, tensors)
    picked = b.gather_nd(moved, positions)
    return _back(b, picked, axes, positions.type.rank - 1, front)


def _chosen(b: Body, indices: Sequence[Var | None]) -> tuple[list[int], list[Var]]:
    """Axes that are indexed, and by what."""
    axes = [k for k, t in enumerate(indices) if t is not None]
    tensors = [t for t in indices if t is not None]
    if any(t.dtype is boolean for t in tensors):
        raise Untranslatable("the number of elements that a mask chooses depends on data")
    return axes, [_index(b, t) for t in tensors]


def _gathered(b: Body, x: Var, axis: int, index: Var) -> Var:
    return b.gather(x, index, axis=axis)


def _moved(b: Body, x: Var, axes: Sequence[int]) -> tuple[Var, int]:
    """x with the indexed axes first; where the result has their place."""
    rest = [k for k in range(x.type.rank) if k not in axes]
    perm = [*axes, *rest]
    adjacent = list(axes) == list(range(axes[0], axes[0] + len(axes)))
    moved = x if perm == sorted(perm) else b.transpose(x, perm=perm)
    return moved, axes[0] if adjacent else 0


def _positions(b: Body, x: Var, axes: Sequence[int], tensors: Sequence[Var]) -> Var:
    """The indices side by side along a last axis, as `gather_nd` takes them."""
    shape = list(_broadcast_shape(tensors))
    wide = [b.broadcasted(b.to(t, i64), shape) for t in tensors]
    return b.stack(*wide, axis=-1)


def _broadcast_shape(tensors: Sequence[Var]):
    rank = max(t.type.rank for t in tensors)
    shape: list = [1] * rank
    for t in tensors:
        for k, d in enumerate(t.shape, rank - t.type.rank):
            if d != 1:
                shape[k] = d
    return shape


def _back(b: Body, picked: Var, axes: Sequence[int], count: int, front: int) -> Var:
    """The axes of the indices, which come first, where PyTorch has them."""
    if front == 0:
        return picked
    rest = picked.type.rank - count
    perm = [*range(count, count + front), *range(count), *range(count + front, count + rest)]
    return b.transpose(picked, perm=perm)


@rule("index_put.default", "_unsafe_index_put.default")
def index_put(b: Body, x, indices, values, accumulate=False):
    values = b.to(values, x.dtype)
    (mask, *others) = [t for t in indices if t is not None]
    if mask.dtype is boolean:
        return _masked_put(b, x, indices, mask, others, values, accumulate)
    axes, tensors = _chosen(b, indices)
    moved, front = _moved(b, x, axes)
    positions = _positions(b, x, axes, tensors)
    count = positions.type.rank - 1
    rest = moved.shape[len(axes) :]
    wanted = [*rest[:front], *positions.shape[:-1], *rest[front:]]
    values = b.broadcasted(values, wanted)
    if front:
        order = [*range(front, front + count), *range(front), *range(front + count, len(wanted))]
        values = b.transpose(values, perm=order)
    put = (b.scatter_nd_add if accumulate else b.scatter_nd)(moved, positions, values)
    perm = [*axes, *(k for k in range(x.type.rank) if k not in axes)]
    return put if moved is x else b.transpose(put, perm=[perm.index(k) for k in range(len(perm))])


def _masked_put(b: Body, x, indices, mask, others, values, accumulate):
    if others or indices[0] is None or any(d != 1 for d in values.shape):
        raise Untranslatable("values for a mask whose number of elements depends on data")
    shape = [*mask.shape, *[1] * (x.type.rank - mask.type.rank)]
    value = b.reshaped(values, ())
    chosen = b.add(x, value) if accumulate else value
    return b.where(b.reshaped(mask, shape), chosen, x)


@rule("nll_loss.default", "nll_loss_nd.default")
def nll_loss(b: Body, x, target, weight=None, reduction=1, ignore_index=-100):
    return b.nll_loss(x, _index(b, target), weight, axis=1 if x.type.rank > 1 else 0,
                      reduction=_REDUCTIONS[reduction], ignore_index=ignore_index)  # fmt: skip


_REDUCTIONS = ("none", "mean", "sum")


@rule("cross_entropy_loss.default")
def cross_entropy(b: Body, x, target, weight=None, reduction=1, ignore_index=-100, smoothing=0.0):
    if smoothing or target.dtype.is_float:
        raise Untranslatable("label smoothing, or targets that are probabilities")
    attrs = {"reduction": _REDUCTIONS[reduction], "ignore_index": ignore_index}
    axis = 1 if x.type.rank > 1 else 0
    return b.softmax_cross_entropy(x, _index(b, target), weight, axis=axis, **attrs)


def _loss(op: str):
    def translated(b: Body, x, target, reduction=1, *rest):
        return getattr(b, op)(x, target, reduction=_REDUCTIONS[reduction])

    return translated


for _name in ("mse_loss", "l1_loss"):
    rule(f"{_name}.default")(_loss(_name))


@rule("smooth_l1_loss.default")
def smooth_l1_loss(b: Body, x, target, reduction=1, beta=1.0):
    return b.smooth_l1_loss(x, target, reduction=_REDUCTIONS[reduction], beta=float(beta))


@rule("huber_loss.default")
def huber_loss(b: Body, x, target, reduction=1, delta=1.0):
    return b.huber_loss(x, target, reduction=_REDUCTIONS[reduction], delta=float(delta))


@rule("kl_div.default")
def kl_div(b: Body, x, target, reduction=1, *, log_target=False):
    return b.kl_div(x, target, reduction=_REDUCTIONS[reduction], log_target=log_target)
