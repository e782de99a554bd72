"""Layers of networks: products, normalisation, attention."""

from __future__ import annotations

import math
import string

from opstep.frontends.torch.body import Body, Var
from opstep.frontends.torch.errors import TYPES, Refused, Untranslatable
from opstep.frontends.torch.rules.layout import matrix_transpose
from opstep.frontends.torch.rules.pointwise import assertion
from opstep.frontends.torch.rules.reductions import norm
from opstep.frontends.torch.rules.registry import rule
from opstep.runtime.ir.types import boolean, f32, i64


@rule("linear.default")
def linear(b: Body, x, w, bias=None):
    return b.linear(x, w, bias)


@rule("matmul.default", "mm.default", "bmm.default", "mv.default", "dot.default", "inner.default")
def matmul(b: Body, x, y):
    """Vectors are rows on the left and columns on the right."""
    if x.dtype != y.dtype:
        raise Refused(f"{TYPES}: {x.dtype} and {y.dtype}")
    left = b.unsqueeze(x, axes=[0]) if x.type.rank == 1 else x
    right = b.unsqueeze(y, axes=[1]) if y.type.rank == 1 else y
    return b.reshaped(b.matmul(left, right), b.out.shape)


@rule("addmm.default", "baddbmm.default", "addmv.default")
def addmm(b: Body, bias, x, y, *, beta=1, alpha=1):
    is_layer = x.type.rank == y.type.rank == 2 and bias.shape == y.shape[1:]
    if is_layer and beta == alpha == 1 and x.dtype == y.dtype == bias.dtype:
        return b.linear(x, y, bias, transpose_w=True)
    return _added(b, bias, matmul(b, x, y), beta, alpha)


def _added(b: Body, bias: Var, product: Var, beta, alpha) -> Var:
    if not b.out.dtype.is_float:
        beta, alpha = int(beta), int(alpha)
    if alpha != 1:
        product = b.mul(product, alpha)
    if beta == 0:
        return product
    return b.add(product, bias if beta == 1 else b.mul(bias, beta))


@rule("addbmm.default")
def addbmm(b: Body, bias, x, y, *, beta=1, alpha=1):
    return _added(b, bias, b.sum(b.matmul(x, y), axes=[0]), beta, alpha)


@rule("einsum.default")
def einsum(b: Body, equation, operands, *, path=None):
    return b.einsum(*operands, equation=equation.replace(" ", ""))


@rule("_trilinear.default")
def trilinear(b: Body, x, y, z, new_x, new_y, new_z, axes, _=1):
    """The sum over some axes of the product of three, which get new axes first."""
    rank = x.type.rank + len(new_x)
    names = string.ascii_lowercase[:rank]
    labels = [
        "".join(names[i] for i in range(rank) if i not in new) for new in (new_x, new_y, new_z)
    ]
    kept = "".join(names[i] for i in range(rank) if i not in axes)
    return b.einsum(x, y, z, equation=f"{','.join(labels)}->{kept}")


# --- normalisation ---


@rule("layer_norm.default")
def layer_norm(b: Body, x, shape, weight=None, bias=None, eps=1e-5, *_):
    attrs = {"shape": list(shape), "epsilon": float(eps)}
    if weight is None and bias is not None:
        return b.add(b.layer_norm(x, **attrs), bias)
    return b.layer_norm(x, weight, bias, **attrs)


@rule("native_layer_norm.default")
def native_layer_norm(b: Body, x, shape, weight, bias, eps):
    if not b.is_used(1) and not b.is_used(2):
        return layer_norm(b, x, shape, weight, bias, eps), None, None
    return b.layer_norm_with_statistics(x, weight, bias, shape=list(shape), epsilon=float(eps))


@rule("rms_norm.default")
def rms_norm(b: Body, x, shape, weight=None, eps=None):
    if eps is None:
        eps = {"f64": 2.220446049250313e-16, "f32": 1.1920928955078125e-07}.get(x.dtype.name)
        if eps is None:
            raise Untranslatable("rms_norm of a two-byte type without eps")
    return b.rms_norm(x, weight, shape=list(shape), epsilon=float(eps))


@rule("group_norm.default")
def group_norm(b: Body, x, groups, weight=None, bias=None, eps=1e-5, *_):
    return b.group_norm(x, weight, bias, groups=groups, epsilon=float(eps))


@rule("native_group_norm.default")
def native_group_norm(b: Body, x, weight, bias, n, c, plane, groups, eps):
    if not b.is_used(1) and not b.is_used(2):
        return group_norm(b, x, groups, weight, bias, eps), None, None
    return b.group_norm_with_statistics(x, weight, bias, groups=groups, epsilon=float(eps))


@rule("instance_norm.default")
def instance_norm(b: Body, x, weight, bias, mean, var, use_input_stats, momentum, eps, *_):
    if not use_input_stats:
        return batch_norm_inference(b, x, weight, bias, mean, var, momentum, eps)[0]
    return b.group_norm(x, weight, bias, groups=x.shape[1], epsilon=float(eps))


def _scale_and_shift(b: Body, x: Var, weight: Var | None, bias: Var | None) -> tuple[Var, Var]:
    """One for each channel, 1 and 0 where the layer has none."""
    shape, dtype = [x.shape[1]], x.dtype
    scale = b.full(shape=shape, value=1.0, dtype=dtype) if weight is None else weight
    return scale, b.full(shape=shape, value=0.0, dtype=dtype) if bias is None else bias


@rule("_native_batch_norm_legit_no_training.default")
def batch_norm_inference(b: Body, x, weight, bias, mean, var, momentum, eps):
    scale, shift = _scale_and_shift(b, x, weight, bias)
    y = b.batch_norm(x, scale, shift, mean, var, epsilon=float(eps))
    saved = (t for t in b.expected[1:3] if t is not None)
    return y, *(b.filled(t, 0) if t.shape == (0,) else None for t in saved)


def _batch_norm_training(b: Body, x: Var, weight, bias, eps):
    """y, the mean and the variance of the batch."""
    scale, shift = _scale_and_shift(b, x, weight, bias)
    return b.batch_norm_train(x, scale, shift, epsilon=float(eps))


@rule("batch_norm.default")
def batch_norm(b: Body, x, weight, bias, mean, var, training, momentum, eps, *_):
    if not training:
        return batch_norm_inference(b, x, weight, bias, mean, var, momentum, eps)[0]
    if mean is not None:
        raise Untranslatable("batch_norm that updates its statistics in place")
    return _batch_norm_training(b, x, weight, bias, eps)[0]


@rule("_native_batch_norm_legit.no_stats")
def batch_norm_without_stats(b: Body, x, weight, bias, training, momentum, eps):
    y, mean, var = _batch_norm_training(b, x, weight, bias, eps)
    return y, mean, _rstd(b, var, eps)


@rule("native_batch_norm.default")
def native_batch_norm(b: Body, x, weight, bias, mean, var, training, momentum, eps):
    if training:
        return batch_norm_without_stats(b, x, weight, bias, True, momentum, eps)
    return batch_norm_inference(b, x, weight, bias, mean, var, momentum, eps)


@rule("_native_batch_norm_legit_functional.default")
def batch_norm_functional(b: Body, x, weight, bias, mean, var, training, momentum, eps):
    if not training:
        y, *saved = batch_norm_inference(b, x, weight, bias, mean, var, momentum, eps)
        return y, *saved, mean, var
    y, batch_mean, batch_var = _batch_norm_training(b, x, weight, bias, eps)
    count = x.type.size // x.shape[1]
    factor = b.div(b.extent(of=[count], dtype=batch_var.dtype),
                   b.extent(of=[count - 1], dtype=batch_var.dtype))  # fmt: skip
    new_mean = _running(b, mean, batch_mean, momentum)
    new_var = _running(b, var, b.mul(batch_var, factor), momentum)
    return y, batch_mean, _rstd(b, batch_var, eps), new_mean, new_var


@rule("native_batch_norm_backward.default")
def batch_norm_backward(
    b: Body, gy, x, weight, running_mean, running_var, mean, rstd, training, eps, mask
):
    """`mean` and `rstd` are those of the batch, where it is training that is gone back through."""
    if training:
        scale, _ = _scale_and_shift(b, x, weight, None)
        var = b.sub(b.reciprocal(b.square(rstd)), float(eps))
        return b.batch_norm_grad(x, scale, gy, mean, var, epsilon=float(eps))
    wide = f32 if x.dtype.is_half else x.dtype
    away = b.sub(b.to(x, wide), _along_channels(b, x, b.to(running_mean, wide)))
    factor = b.rsqrt(b.add(b.to(running_var, wide), float(eps)))
    slope = factor if weight is None else b.mul(factor, b.to(weight, wide))
    others, gy = [k for k in range(x.type.rank) if k != 1], b.to(gy, wide)
    gx = b.to(b.mul(gy, _along_channels(b, x, slope)), x.dtype) if mask[0] else None
    g_scale = b.mul(b.sum(b.mul(gy, away), axes=others), factor) if mask[1] else None
    return gx, g_scale, b.sum(gy, axes=others) if mask[2] else None


def _along_channels(b: Body, x: Var, numbers: Var) -> Var:
    """One number a channel, as it broadcasts to x."""
    return b.reshape(numbers, shape=[x.shape[1], *[1] * (x.type.rank - 2)])


def _rstd(b: Body, var: Var, eps: float) -> Var | None:
    return b.rsqrt(b.add(var, float(eps))) if b.is_used(2) else None


def _running(b: Body, old: Var, new: Var, momentum: float) -> Var:
    new = b.to(new, old.dtype)
    return b.add(b.mul(old, 1.0 - momentum), b.mul(new, float(momentum)))


# --- attention ---


@rule("scaled_dot_product_attention.default")
def attention(
    b: Body, q, k, v, mask=None, dropout_p=0.0, is_causal=False, *, scale=None, enable_gqa=False
):
    if dropout_p:
        raise Untranslatable("dropout of attention weights: export the model in eval mode")
    scale = None if scale is None else float(scale)
    gqa = enable_gqa and k.shape[-3] != q.shape[-3]
    attrs = {"causal": is_causal, "scale": scale, "enable_gqa": gqa}
    return b.scaled_dot_product_attention(q, k, v, mask, **attrs)


@rule("_scaled_dot_product_flash_attention_for_cpu.default")
def flash_attention(
    b: Body, q, k, v, dropout_p=0.0, is_causal=False, *, attn_mask=None, scale=None
):
    y = attention(b, q, k, v, attn_mask, dropout_p, is_causal, scale=scale)
    if not b.is_used(1):
        return y, None
    return y, b.logsumexp(_scores(b, q, k, attn_mask, is_causal, scale), axes=[3])


def _scores(b: Body, q: Var, k: Var, mask: Var | None, is_causal: bool, scale) -> Var:
    """With -inf where a query does not look."""
    scores = b.matmul(b.mul(q, _scale(b, q, scale)), k, transpose_b=True)
    if is_causal:
        mask = b.tril(b.full(shape=list(scores.shape[-2:]), value=1, dtype=boolean))
    if mask is None:
        return scores
    return b.where(mask, scores, -math.inf) if mask.dtype is boolean else b.add(scores, mask)


def _scale(b: Body, q: Var, scale: float | None):
    size = q.shape[-1]
    if scale is None and isinstance(size, int):
        scale = size**-0.5
    return b.rsqrt(b.extent(of=[size], dtype=q.dtype)) if scale is None else float(scale)


@rule("_scaled_dot_product_flash_attention_for_cpu_backward.default")
def flash_attention_backward(
    b: Body, gy, q, k, v, y, logsumexp, dropout_p, is_causal, *, attn_mask=None, scale=None
):
    attrs = {"causal": is_causal, "scale": None if scale is None else float(scale)}
    return b.scaled_dot_product_attention_grad(q, k, v, gy, attn_mask, **attrs)


# --- triangular matrices ---


@rule("linalg_cholesky_ex.default")
def cholesky_ex(b: Body, a, *, upper=False, check_errors=False):
    """Its second result is the first row from which on a is not positive definite, 0 for none."""
    y = b.cholesky(matrix_transpose(b, a) if upper else a)
    info = _first_bad_row(b, y) if check_errors or b.is_used(1) else None
    if check_errors:
        check_errors_of(b, info, "linalg.cholesky_ex")
    return matrix_transpose(b, y) if upper else y, info


@rule("cholesky.default", "linalg_cholesky.default")
def cholesky(b: Body, a, upper=False):
    y = b.cholesky(matrix_transpose(b, a) if upper else a)
    check_errors_of(b, _first_bad_row(b, y), "linalg.cholesky")
    return matrix_transpose(b, y) if upper else y


def _first_bad_row(b: Body, y: Var) -> Var:
    rank = y.type.rank
    bad = b.isnan(b.diagonal(y, axes=[rank - 2, rank - 1]))
    if bad.shape[-1] == 0:
        return b.full(shape=list(bad.shape[:-1]), value=0, dtype=i64)
    first = b.add(b.argmax(b.cast(bad, dtype=i64), axis=-1), 1)
    return b.where(b.any(bad, axes=[-1]), first, 0)


@rule("_linalg_check_errors.default")
def check_errors_of(b: Body, info, name, *, is_matrix=False):
    fine = b.equal(info, 0)
    assertion(b, b.all(fine) if info.type.rank else fine, f"{name} has no result for this input")


@rule("linalg_solve_triangular.default")
def solve_triangular(b: Body, a, x, *, upper, left=True, unitriangular=False):
    batch = list(b.out.shape[:-2])
    a, x = (b.broadcasted(t, [*batch, *t.shape[-2:]]) for t in (a, x))
    attrs = {"upper": upper, "unit": unitriangular}
    if left:
        return b.solve_triangular(a, x, **attrs)
    y = b.solve_triangular(a, matrix_transpose(b, x), transpose=True, **attrs)
    return matrix_transpose(b, y)


@rule("cholesky_solve.default")
def cholesky_solve(b: Body, x, root, upper=False):
    batch = list(b.out.shape[:-2])
    root, x = (b.broadcasted(t, [*batch, *t.shape[-2:]]) for t in (root, x))
    for transpose in (upper, not upper):
        x = b.solve_triangular(root, x, upper=upper, transpose=transpose)
    return x


# --- distances ---


@rule("_cdist_forward.default")
def cdist(b: Body, x, y, p, _):
    return b.cdist(x, y, p=float(p))


@rule("_pdist_forward.default")
def pdist(b: Body, x, p=2.0):
    n, _ = x.shape
    above = b.triu(b.full(shape=[n, n], value=1, dtype=boolean), diagonal=1)
    order = b.argsort(b.reshape(above, shape=[n * n]), descending=True)  # where it is true, first
    places = b.slice(order, starts=[0], ends=[b.out.shape[0]])
    rows = [b.gather(x, op(places, n)) for op in (b.floor_div, b.rem)]
    return norm(b, b.sub(*rows), p, [1], False)
