"""Layers of networks: products, normalisation, attention, losses."""

from __future__ import annotations

from typing import Any

from opstep.frontends.onnx.body import Body, Var, axis_of
from opstep.frontends.onnx.errors import Untranslatable
from opstep.frontends.onnx.rules.registry import rule


@rule("MatMul")
def matmul(b: Body, x, y):
    """Vectors are rows on the left and columns on the right."""
    left = b.unsqueeze(x, axes=[0]) if x.type.rank == 1 else x
    right = b.unsqueeze(y, axes=[1]) if y.type.rank == 1 else y
    found = b.matmul(left, right)
    if y.type.rank == 1:
        found = b.squeeze(found, axes=[found.type.rank - 1])
    if x.type.rank == 1:
        found = b.squeeze(found, axes=[found.type.rank - (1 if y.type.rank == 1 else 2)])
    return found


@rule("Gemm")
def gemm(b: Body, x, y, c=None, *, alpha=1.0, beta=1.0, transA=0, transB=0, broadcast=0):
    is_float = x.dtype.is_float
    alpha, beta = (v if is_float else int(v) for v in (alpha, beta))
    if not transA and alpha == 1 and beta == 1 and (transB or c) and _is_row(c, y, transB):
        return b.linear(x, y, c, **({} if transB else {"transpose_w": True}))
    product = b.matmul(x, y, transpose_a=bool(transA), transpose_b=bool(transB))
    product = product if alpha == 1 else b.mul(product, alpha)
    if c is None or beta == 0:
        return product
    return b.add(product, c if beta == 1 else b.mul(c, beta))


def _is_row(c: Var | None, y: Var, turned: int) -> bool:
    return c is None or tuple(c.shape) == (y.shape[0 if turned else 1],)


# --- normalisation ---


@rule("BatchNormalization", since=9)
def batch_norm(
    b: Body, x, scale, bias, mean, var, *, epsilon=1e-5, momentum=0.9, training_mode=0, spatial=1
):
    if not spatial:
        raise Untranslatable("statistics of each element (spatial=0)")
    if training_mode:
        return _trained(b, x, scale, bias, mean, var, epsilon, momentum)
    if any(b.wants(k) for k in (1, 2, 3, 4)):
        raise Untranslatable("statistics of a model in training")
    return b.batch_norm(x, scale, bias, mean, var, epsilon=epsilon)


@rule("BatchNormalization")
def batch_norm_before(b: Body, x, scale, bias, mean, var, *, is_test=1, **how):
    if not is_test:
        raise Untranslatable("statistics of a model in training")
    return batch_norm(b, x, scale, bias, mean, var, **how)


def _trained(b: Body, x, scale, bias, mean, var, epsilon, momentum) -> tuple[Var, ...]:
    axes = [0, *range(2, x.type.rank)]
    y = b.batch_norm_train(x, scale, bias, epsilon=epsilon)[0]
    new = b.mean(x, axes=axes), b.var(x, axes=axes, correction=0)
    kept = [
        b.add(b.mul(old, momentum), b.mul(b.to(found, old.dtype), round(1 - momentum, 7)))
        for old, found in zip((mean, var), new, strict=True)
    ]
    return y, *kept


@rule("InstanceNormalization")
def instance_norm(b: Body, x, scale, bias, *, epsilon=1e-5):
    return b.group_norm(x, scale, bias, groups=x.shape[1], epsilon=epsilon)


@rule("GroupNormalization", since=21)
def group_norm(b: Body, x, scale, bias, *, num_groups, epsilon=1e-5, stash_type=1):
    return b.group_norm(x, scale, bias, groups=num_groups, epsilon=epsilon)


@rule("GroupNormalization")
def group_norm_by_groups(b: Body, x, scale, bias, *, num_groups, epsilon=1e-5):
    """Scales are those of groups."""
    each = x.shape[1] // num_groups
    scale, bias = (
        b.reshape(
            b.broadcast(b.unsqueeze(v, axes=[1]), shape=[num_groups, each]), shape=[x.shape[1]]
        )
        for v in (scale, bias)
    )
    return b.group_norm(x, scale, bias, groups=num_groups, epsilon=epsilon)


@rule("LayerNormalization")
def layer_norm(b: Body, x, scale, bias=None, *, axis=-1, epsilon=1e-5, stash_type=1):
    axis = axis_of(axis, x.type.rank)
    shape = list(x.shape[axis:])
    scale, bias = (None if v is None else b.broadcasted(v, shape) for v in (scale, bias))
    how = {"shape": shape, "epsilon": epsilon}
    if not b.wants(1) and not b.wants(2):
        return b.layer_norm(x, scale, bias, **how)
    y, mean, rstd = b.layer_norm_with_statistics(x, scale, bias, **how)
    kept = [*x.shape[:axis], *[1] * len(shape)]
    return y, b.reshaped(mean, kept), b.reshaped(rstd, kept)


@rule("RMSNormalization", "SimplifiedLayerNormalization")
def rms_norm(b: Body, x, scale, *, axis=-1, epsilon=1e-5, stash_type=1):
    shape = list(x.shape[axis_of(axis, x.type.rank) :])
    return b.rms_norm(x, b.broadcasted(scale, shape), shape=shape, epsilon=epsilon)


# --- attention ---


@rule("Attention")
def attention(
    b: Body, q, k, v, mask=None, past_k=None, past_v=None, kv_lengths=None, *, is_causal=0,
    kv_num_heads=None, q_num_heads=None, scale=None, softcap=0.0, softmax_precision=None,
    qk_matmul_output_mode=0,
):  # fmt: skip
    """The common forms; others by ONNX's definition."""
    whole = q.type.rank == 3
    if softcap or b.wants(3) or kv_lengths is not None:
        raise Untranslatable("this form of attention")
    if is_causal and (past_k is not None or mask is not None or q.shape[-2] != k.shape[-2]):
        raise Untranslatable("causal attention with a past or a mask")
    if whole:
        q = split_heads(b, q, q_num_heads)
        k, v = split_heads(b, k, kv_num_heads), split_heads(b, v, kv_num_heads)
    if past_k is not None:
        k, v = b.concat(past_k, k, axis=2), b.concat(past_v, v, axis=2)
    if mask is not None and (mask.shape[-1] != k.shape[-2] or mask.type.rank < 2):
        raise Untranslatable("a mask that is shorter than the keys")
    if mask is not None and mask.dtype.kind == "b" and not is_causal:
        mask = b.where(mask, b.filled([], 0.0, q.dtype), float("-inf"))
        mask = b.to(mask, q.dtype)
    gqa = q.shape[1] != k.shape[1]
    how = {"causal": bool(is_causal), "scale": scale, "enable_gqa": gqa}
    y = b.scaled_dot_product_attention(q, k, v, mask, **how)
    if whole:
        n, h, length, size = y.shape
        y = b.reshape(b.transpose(y, perm=[0, 2, 1, 3]), shape=[n, length, h * size])
    return y, k, v


def split_heads(b: Body, x: Var, count: Any) -> Var:
    """[N, L, heads*D] as [N, heads, L, D]."""
    n, length, size = x.shape
    return b.transpose(b.reshape(x, shape=[n, length, count, size // count]), perm=[0, 2, 1, 3])


# --- losses ---


@rule("NegativeLogLikelihoodLoss")
def nll_loss(b: Body, x, label, weight=None, *, ignore_index=None, reduction="mean"):
    return _loss(b, "nll_loss", x, label, weight, ignore_index, reduction)


@rule("SoftmaxCrossEntropyLoss")
def cross_entropy(b: Body, x, label, weight=None, *, ignore_index=None, reduction="mean"):
    loss = _loss(b, "softmax_cross_entropy", x, label, weight, ignore_index, reduction)
    return (loss, b.log_softmax(x, axis=1)) if b.wants(1) else loss


def _loss(b: Body, op: str, x: Var, label: Var, weight: Any, ignored: Any, reduction: str) -> Var:
    how = {"ignore_index": ignored} if ignored is not None else {}
    return getattr(b, op)(x, label, weight, axis=1, reduction=reduction, **how)


# --- positions ---


@rule("RotaryEmbedding")
def rotary_embedding(
    b: Body, x, cos, sin, positions=None, *, interleaved=0, num_heads=0, rotary_embedding_dim=0
):
    return rotated(b, x, cos, sin, positions, interleaved, num_heads, rotary_embedding_dim)


def rotated(
    b: Body, x: Var, cos: Var, sin: Var, positions: Var | None, interleaved: int, heads: int,
    size: Any,
) -> Var:  # fmt: skip
    """x [N, heads, L, D] or [N, L, heads*D], turned in planes of two features each."""
    shape = list(x.shape)
    if x.type.rank == 3:
        if not heads:
            raise Untranslatable("rotary embedding of three axes without num_heads")
        x = b.reshape(x, shape=[shape[0], shape[1], heads, shape[2] // heads])
        axis = 2
    else:
        axis = 1
    features = x.shape[-1]
    size = size or features
    rest = None
    if size != features:
        x, rest = b.split(x, sizes=[size, features - size], axis=3)
    if positions is not None:
        cos, sin = b.gather(cos, positions), b.gather(sin, positions)
    cos, sin = (b.unsqueeze(t, axes=[axis]) for t in (cos, sin))
    half = size // 2
    if interleaved:
        pairs = b.reshape(x, shape=[*x.shape[:3], half, 2])
        first, second = b.select(pairs, index=0, axis=4), b.select(pairs, index=1, axis=4)
    else:
        first, second = b.split(x, sizes=[half, half], axis=3)
    real = b.sub(b.mul(first, cos), b.mul(second, sin))
    other = b.add(b.mul(first, sin), b.mul(second, cos))
    if interleaved:
        y = b.reshape(b.stack(real, other, axis=4), shape=list(x.shape))
    else:
        y = b.concat(real, other, axis=3)
    y = y if rest is None else b.concat(y, rest, axis=3)
    return b.reshaped(y, shape)
