"""Layers of networks: products, convolutions, pools, normalisation, attention."""

from __future__ import annotations

from typing import Any

from opstep.frontends.torch.body import Body, Var
from opstep.frontends.torch.errors import Untranslatable
from opstep.frontends.torch.rules.registry import rule
from opstep.runtime.ir.types import boolean, f32


@rule("linear.default")
def linear(b: Body, x, w, bias=None):
    return b.linear(x, w, bias)


@rule("matmul.default", "mm.default", "bmm.default", "mv.default", "dot.default", "inner.default")
def matmul(b: Body, x, y):
    """Vectors are rows on the left and columns on the right."""
    left = b.unsqueeze(x, axes=[0]) if x.type.rank == 1 else x
    right = b.unsqueeze(y, axes=[1]) if y.type.rank == 1 else y
    return b.reshaped(b.matmul(left, right), b.out.shape)


@rule("addmm.default", "baddbmm.default", "addmv.default")
def addmm(b: Body, bias, x, y, *, beta=1, alpha=1):
    product = matmul(b, x, y)
    if alpha != 1:
        product = b.mul(product, alpha)
    if beta == 0:
        return product
    return b.add(product, bias if beta == 1 else b.mul(bias, beta))


@rule("outer.default")
def outer(b: Body, x, y):
    return b.mul(b.unsqueeze(x, axes=[1]), y)


@rule("einsum.default")
def einsum(b: Body, equation, operands, *, path=None):
    return b.einsum(*operands, equation=equation.replace(" ", ""))


# --- convolutions ---


def _pair(value: Any, count: int = 2) -> list[int]:
    listed = [value] if isinstance(value, int) else list(value)
    return listed * count if len(listed) == 1 else listed


def _is_batched(b: Body, x: Var, w: Var) -> bool:
    return x.type.rank == w.type.rank


@rule("conv2d.default", "conv2d.padding")
def conv2d(b: Body, x, w, bias=None, stride=1, padding=0, dilation=1, groups=1):
    dilation = _pair(dilation)
    if isinstance(padding, str):
        padding = _named_padding(padding, w.shape[2:], dilation)
    attrs = {"stride": _pair(stride), "padding": _pair(padding), "dilation": dilation}
    if _is_batched(b, x, w):
        return b.conv2d(x, w, bias, **_plain(attrs), **_groups(groups))
    y = b.conv2d(b.unsqueeze(x, axes=[0]), w, bias, **_plain(attrs), **_groups(groups))
    return b.squeeze(y, axes=[0])


def _named_padding(name: str, kernel, dilation) -> list[int]:
    if name == "valid":
        return [0] * len(kernel)
    sums = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
    if any(s % 2 for s in sums):
        before = [s // 2 for s in sums]
        return [*before, *(s - p for s, p in zip(sums, before, strict=True))]
    return [s // 2 for s in sums]


_DEFAULTS = {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "output_padding": [0, 0]}


def _plain(attrs: dict[str, Any]) -> dict[str, Any]:
    """Without what is the default anyway: shorter text."""
    return {k: v for k, v in attrs.items() if _DEFAULTS.get(k) != v}


def _groups(groups: int) -> dict[str, int]:
    return {} if groups == 1 else {"groups": groups}


@rule("conv1d.default", "conv1d.padding")
def conv1d(b: Body, x, w, bias=None, stride=1, padding=0, dilation=1, groups=1):
    (dilation,) = _pair(dilation, 1)
    if isinstance(padding, str):
        padding = _named_padding(padding, w.shape[2:], [dilation])
    padding = _pair(padding, 1)
    pads = [0, padding[0]] if len(padding) == 1 else [0, padding[0], 0, padding[1]]
    attrs = {"stride": [1, *_pair(stride, 1)], "padding": pads, "dilation": [1, dilation]}
    batched = _is_batched(b, x, w)
    image = b.unsqueeze(x, axes=[2] if batched else [0, 2])
    y = b.conv2d(image, b.unsqueeze(w, axes=[2]), bias, **_plain(attrs), **_groups(groups))
    return b.squeeze(y, axes=[2] if batched else [0, 2])


@rule("conv_transpose2d.input")
def conv_transpose2d(
    b: Body, x, w, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1
):
    attrs = {
        "stride": _pair(stride), "padding": _pair(padding), "dilation": _pair(dilation),
        "output_padding": _pair(output_padding),
    }  # fmt: skip
    return b.conv_transpose2d(x, w, bias, **_plain(attrs), **_groups(groups))


@rule("conv_transpose1d.default")
def conv_transpose1d(
    b: Body, x, w, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1
):
    attrs = {
        "stride": [1, *_pair(stride, 1)], "padding": [0, *_pair(padding, 1)],
        "dilation": [1, *_pair(dilation, 1)], "output_padding": [0, *_pair(output_padding, 1)],
    }  # fmt: skip
    wide, filters = b.unsqueeze(x, axes=[2]), b.unsqueeze(w, axes=[2])
    y = b.conv_transpose2d(wide, filters, bias, **_plain(attrs), **_groups(groups))
    return b.squeeze(y, axes=[2])


@rule("convolution.default")
def convolution(b: Body, x, w, bias, stride, padding, dilation, transposed, output_padding, groups):
    rank = w.type.rank - 2
    if transposed:
        forms = {1: conv_transpose1d, 2: conv_transpose2d}
        rest = (stride, padding, output_padding, groups, dilation)
    else:
        forms, rest = {1: conv1d, 2: conv2d}, (stride, padding, dilation, groups)
    if rank not in forms:
        raise Untranslatable(f"a convolution over {rank} dims")
    return forms[rank](b, x, w, bias, *rest)


# --- pools ---


def _window(kernel, stride, padding, dilation: Any = 1, ceil_mode=False) -> dict[str, Any]:
    kernel = _pair(kernel)
    stride = _pair(stride) if stride else kernel
    attrs = {"padding": _pair(padding), "dilation": _pair(dilation)}
    attrs = {"kernel": kernel, "stride": stride, **_plain(attrs)}
    return {**attrs, "ceil_mode": True} if ceil_mode else attrs


def _image(b: Body, x: Var, op, **attrs):
    """Images without a batch get one for a moment."""
    if x.type.rank == 4:
        return op(x, **attrs)
    y = op(b.unsqueeze(x, axes=[0]), **attrs)
    return (
        tuple(b.squeeze(t, axes=[0]) for t in y) if isinstance(y, tuple) else b.squeeze(y, axes=[0])
    )


@rule("max_pool2d.default")
def max_pool2d(b: Body, x, kernel, stride=None, padding=0, dilation=1, ceil_mode=False):
    return _image(b, x, b.max_pool2d, **_window(kernel, stride, padding, dilation, ceil_mode))


@rule("max_pool2d_with_indices.default")
def max_pool2d_with_indices(
    b: Body, x, kernel, stride=None, padding=0, dilation=1, ceil_mode=False
):
    window = _window(kernel, stride, padding, dilation, ceil_mode)
    return _image(b, x, b.max_pool2d_with_indices, **window)


@rule("max_pool1d.default")
def max_pool1d(b: Body, x, kernel, stride=None, padding=0, dilation=1, ceil_mode=False):
    (k,), (p,), (d,) = _pair(kernel, 1), _pair(padding, 1), _pair(dilation, 1)
    (s,) = _pair(stride, 1) if stride else (k,)
    window = _window([1, k], [1, s], [0, p], [1, d], ceil_mode)
    return b.squeeze(b.max_pool2d(b.unsqueeze(x, axes=[2]), **window), axes=[2])


@rule("avg_pool2d.default")
def avg_pool2d(
    b: Body, x, kernel, stride=None, padding=0, ceil_mode=False, count_include_pad=True,
    divisor_override=None,
):  # fmt: skip
    window = _window(kernel, stride, padding, 1, ceil_mode)
    if not count_include_pad:
        window["count_include_pad"] = False
    if divisor_override:
        window["divisor_override"] = divisor_override
    return _image(b, x, b.avg_pool2d, **window)


@rule("avg_pool1d.default")
def avg_pool1d(b: Body, x, kernel, stride=None, padding=0, ceil_mode=False, count_include_pad=True):
    (k,), (p,) = _pair(kernel, 1), _pair(padding, 1)
    (s,) = _pair(stride, 1) if stride else (k,)
    wide = b.unsqueeze(x, axes=[2])
    window = _window([1, k], [1, s], [0, p], 1, ceil_mode)
    return b.squeeze(b.avg_pool2d(wide, **window, count_include_pad=count_include_pad), axes=[2])


@rule("adaptive_avg_pool2d.default", "_adaptive_avg_pool2d.default")
def adaptive_avg_pool2d(b: Body, x, _):
    size = list(b.out.shape[-2:])
    if size == [1, 1] and x.type.rank == 4:
        return b.global_avg_pool2d(x)
    return _image(b, x, b.adaptive_avg_pool2d, output_size=size)


@rule("adaptive_avg_pool1d.default")
def adaptive_avg_pool1d(b: Body, x, _):
    wide = b.unsqueeze(x, axes=[2])
    pooled = b.adaptive_avg_pool2d(wide, output_size=[1, b.out.shape[-1]])
    return b.squeeze(pooled, axes=[2])


@rule("upsample_nearest2d.vec", "upsample_nearest2d.default")
def upsample_nearest2d(b: Body, x, *_):
    return b.upsample2d(x, size=list(b.out.shape[-2:]))


@rule("upsample_bilinear2d.vec", "upsample_bilinear2d.default")
def upsample_bilinear2d(b: Body, x, size, align_corners, scales=None, *_):
    corners = {"align_corners": True} if align_corners else {}
    return b.upsample2d(x, size=list(b.out.shape[-2:]), mode="bilinear", **corners)


@rule("pixel_shuffle.default")
def pixel_shuffle(b: Body, x, factor):
    *batch, c, h, w = x.shape
    k, n = factor, len(batch)
    wide = b.reshape(x, shape=[*batch, c // (k * k), k, k, h, w])
    perm = [*range(n), n, n + 3, n + 1, n + 4, n + 2]
    return b.reshape(b.transpose(wide, perm=perm), shape=list(b.out.shape))


# --- normalisation ---


def _rows(eps: float) -> dict[str, Any]:
    return {} if eps == 1e-5 else {"epsilon": float(eps)}


@rule("layer_norm.default")
def layer_norm(b: Body, x, shape, weight=None, bias=None, eps=1e-5, *_):
    return b.layer_norm(x, weight, bias, shape=list(shape), **_rows(eps))


@rule("native_layer_norm.default")
def native_layer_norm(b: Body, x, shape, weight, bias, eps):
    y = layer_norm(b, x, shape, weight, bias, eps)
    axes = list(range(x.type.rank - len(shape), x.type.rank))
    wide = b.to(x, f32) if x.dtype.is_half else x
    mean = b.mean(wide, axes=axes, keepdims=True)
    var = b.var(wide, axes=axes, keepdims=True, correction=0)
    return y, mean, b.rsqrt(b.add(var, float(eps)))


@rule("rms_norm.default")
def rms_norm(b: Body, x, shape, weight=None, eps=None):
    if eps is None:
        eps = {"f64": 2.220446049250313e-16, "f32": 1.1920928955078125e-07}.get(x.dtype.name)
        if eps is None:
            raise Untranslatable("rms_norm of a two-byte type without eps")
    return b.rms_norm(x, weight, shape=list(shape), epsilon=float(eps))


@rule("group_norm.default")
def group_norm(b: Body, x, groups, weight=None, bias=None, eps=1e-5, *_):
    return b.group_norm(x, weight, bias, groups=groups, **_rows(eps))


@rule("instance_norm.default")
def instance_norm(b: Body, x, weight, bias, mean, var, use_input_stats, momentum, eps, *_):
    if not use_input_stats:
        return batch_norm_inference(b, x, weight, bias, mean, var, momentum, eps)[0]
    return b.group_norm(x, weight, bias, groups=x.shape[1], **_rows(eps))


def _channel(b: Body, x: Var, t: Var | None, value: float) -> Var:
    return b.full(shape=[x.shape[1]], value=value, dtype=x.dtype) if t is None else t


@rule("_native_batch_norm_legit_no_training.default")
def batch_norm_inference(b: Body, x, weight, bias, mean, var, momentum, eps):
    scale, shift = _channel(b, x, weight, 1.0), _channel(b, x, bias, 0.0)
    y = b.batch_norm(x, scale, shift, mean, var, **_rows(eps))
    return y, None, None


@rule("batch_norm.default")
def batch_norm(b: Body, x, weight, bias, mean, var, training, momentum, eps, *_):
    if training:
        raise Untranslatable("batch_norm that updates its statistics in place")
    return batch_norm_inference(b, x, weight, bias, mean, var, momentum, eps)[0]


@rule("_native_batch_norm_legit_functional.default")
def batch_norm_functional(b: Body, x, weight, bias, mean, var, training, momentum, eps):
    if not training:
        y, *_ = batch_norm_inference(b, x, weight, bias, mean, var, momentum, eps)
        return y, None, None, mean, var
    scale, shift = _channel(b, x, weight, 1.0), _channel(b, x, bias, 0.0)
    y, batch_mean, batch_var = b.batch_norm_train(x, scale, shift, **_rows(eps))
    rstd = b.rsqrt(b.add(batch_var, float(eps)))
    count = x.type.size // x.shape[1]
    factor = b.div(b.extent(of=[count], dtype=batch_var.dtype),
                   b.extent(of=[count - 1], dtype=batch_var.dtype))  # fmt: skip
    new_mean = _running(b, mean, batch_mean, momentum)
    new_var = _running(b, var, b.mul(batch_var, factor), momentum)
    return y, batch_mean, rstd, new_mean, new_var


def _running(b: Body, old: Var, new: Var, momentum: float) -> Var:
    new = b.to(new, old.dtype)
    return b.add(b.mul(old, 1.0 - momentum), b.mul(new, float(momentum)))


# --- attention ---


@rule("scaled_dot_product_attention.default")
def attention(
    b: Body, q, k, v, mask=None, dropout_p=0.0, is_causal=False, *, scale=None, enable_gqa=False
):
    if dropout_p:
        raise Untranslatable("PyTorch's random numbers: export the model in eval mode")
    if enable_gqa and k.shape[-3] != q.shape[-3]:
        k, v = (_repeated(b, t, q.shape[-3]) for t in (k, v))
    scores = b.matmul(_scaled(b, q, scale), k, transpose_b=True)
    rows, columns = q.shape[-2], k.shape[-2]
    if is_causal:
        lower = b.tril(b.full(shape=[rows, columns], value=1, dtype=boolean))
        scores = b.where(lower, scores, float("-inf"))
    if mask is not None and mask.dtype is boolean:
        scores = b.where(mask, scores, float("-inf"))
    elif mask is not None:
        scores = b.add(scores, b.to(mask, scores.dtype))
    weights = b.softmax(scores)
    if mask is not None and mask.dtype is boolean:  # rows where nothing is allowed give 0
        allowed = b.any(mask, axes=[-1], keepdims=True)
        weights = b.where(allowed, weights, 0.0)
    return b.matmul(weights, v)


def _scaled(b: Body, q: Var, scale: float | None) -> Var:
    size = q.shape[-1]
    if scale is not None:
        return b.mul(q, float(scale))
    if isinstance(size, int):
        return b.mul(q, float(size) ** -0.5)
    return b.mul(q, b.rsqrt(b.extent(of=[size], dtype=q.dtype)))


def _repeated(b: Body, t: Var, heads) -> Var:
    *batch, count, length, size = t.shape
    wide = b.unsqueeze(t, axes=[len(batch) + 1])
    wide = b.broadcast(wide, shape=[*batch, count, heads // count, length, size])
    return b.reshape(wide, shape=[*batch, heads, length, size])
