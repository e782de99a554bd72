"""Over sequences, images and volumes: convolutions, pools, resizing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from opstep.frontends.torch.body import Body, Var
from opstep.frontends.torch.errors import Untranslatable
from opstep.frontends.torch.rules.registry import RULES, rule


def each(value: Any, count: int) -> list:
    """One number for each axis."""
    listed = list(value) if isinstance(value, list | tuple) else [value]
    return listed * count if len(listed) == 1 else listed


def batched(b: Body, axes: int, op: Callable[..., Any], *xs: Var) -> Any:
    """Op of operands, to which an axis of samples is added for a moment where they have none."""
    if xs[0].type.rank == axes + 2:
        return op(*xs)
    found = op(*(b.unsqueeze(x, axes=[0]) for x in xs))
    if isinstance(found, Var):
        return b.squeeze(found, axes=[0])
    return tuple(b.squeeze(t, axes=[0]) for t in found)


# --- convolutions ---


def _sides(n: int, **given: Any) -> dict[str, Any]:
    """Attributes that have a number for each axis."""
    return {name: each(value, n) for name, value in given.items()}


@rule(
    *(f"conv{n}d.default" for n in (1, 2, 3)), *(f"conv{n}d.padding" for n in (1, 2, 3))
)  # fmt: skip
def conv(b: Body, x, w, bias=None, stride=1, padding=0, dilation=1, groups=1):
    n = w.type.rank - 2
    if isinstance(padding, str):
        padding = _named_padding(padding, w.shape[2:], each(dilation, n))
    attrs = _sides(n, stride=stride, padding=padding, dilation=dilation)
    op = getattr(b, f"conv{n}d")
    return batched(b, n, lambda x: op(x, w, bias, **attrs, groups=groups), x)


def _named_padding(name: str, kernel, dilation) -> list[int]:
    if name == "valid":
        return [0] * len(kernel)
    sums = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
    before = [s // 2 for s in sums]
    after = [s - p for s, p in zip(sums, before, strict=True)]
    return before if before == after else [*before, *after]


@rule("conv_transpose1d.default", "conv_transpose2d.input", "conv_transpose3d.input")
def conv_transpose(b: Body, x, w, bias=None, stride=1, padding=0, more=0, groups=1, dilation=1):
    n = w.type.rank - 2
    attrs = _sides(n, stride=stride, padding=padding, dilation=dilation, output_padding=more)
    op = getattr(b, f"conv_transpose{n}d")
    return batched(b, n, lambda x: op(x, w, bias, **attrs, groups=groups), x)


@rule("convolution.default")
def convolution(b: Body, x, w, bias, stride, padding, dilation, transposed, output_padding, groups):
    if transposed:
        return conv_transpose(b, x, w, bias, stride, padding, output_padding, groups, dilation)
    return conv(b, x, w, bias, stride, padding, dilation, groups)


@rule("convolution_backward.default")
def convolution_backward(
    b: Body, gy, x, w, bias_sizes, stride, padding, dilation, transposed, output_padding, groups,
    mask,
):  # fmt: skip
    n = w.type.rank - 2
    attrs = _sides(n, stride=stride, padding=padding, dilation=dilation) | {"groups": groups}
    small, large = (x, gy) if transposed else (gy, x)
    weight_grad = getattr(b, f"conv{n}d_weight_grad")
    gx = gw = g_bias = None
    if mask[0] and transposed:
        gx = getattr(b, f"conv{n}d")(gy, w, **attrs)
        if gx.shape != x.shape:
            gx = b.slice(gx, starts=[0] * (n + 2), ends=list(x.shape))
    elif mask[0]:
        gx = getattr(b, f"conv{n}d_input_grad")(gy, w, size=list(x.shape[2:]), **attrs)
    if mask[1]:
        gw = weight_grad(small, large, kernel=list(w.shape[2:]), **attrs)
    if mask[2]:
        g_bias = b.sum(gy, axes=[0, *range(2, n + 2)])
    return gx, gw, g_bias


# --- pools ---


# What a window has behind its size, where that is not given.
_MAX = {"stride": None, "padding": 0, "dilation": 1, "ceil_mode": False}
_AVG = {
    "stride": None, "padding": 0, "ceil_mode": False, "count_include_pad": True,
    "divisor_override": None,
}  # fmt: skip


def _window(n: int, default: dict[str, Any], given: Sequence[Any]) -> dict[str, Any]:
    found: dict[str, Any] = {**default, **dict(zip(("kernel", *default), given, strict=False))}
    sides = {k: each(found[k], n) for k in ("kernel", "padding", "dilation") if k in found}
    stride = each(found["stride"], n) if found["stride"] else sides["kernel"]
    return found | sides | {"stride": None if stride == sides["kernel"] else stride}


def _pool(op: str, n: int, default: dict[str, Any]):
    def translated(b: Body, x, *given):
        window = _window(n, default, given)
        return batched(b, n, lambda x: getattr(b, op)(x, **window), x)

    return translated


def _max_pool_backward(n: int):
    def translated(b: Body, gy, x, *given):
        """The indices are those of the largest elements, which ours finds again."""
        window = _window(n, _MAX, given)
        return batched(b, n, lambda *xs: getattr(b, f"max_pool{n}d_grad")(*xs, **window), gy, x)

    return translated


def _avg_pool_backward(n: int):
    def translated(b: Body, gy, x, *given):
        window = _window(n, _AVG, given) | {"size": list(x.shape[-n:])}
        return batched(b, n, lambda gy: getattr(b, f"avg_pool{n}d_grad")(gy, **window), gy)

    return translated


def _adaptive(n: int, kind: str):
    def translated(b: Body, x, _):
        size = list(b.out.shape[-n:])
        if kind == "avg" and size == [1, 1] and x.type.rank == 4:
            return b.global_avg_pool2d(x)
        op = getattr(b, f"adaptive_{kind}_pool{n}d")
        return batched(b, n, lambda x: op(x, output_size=size), x)

    return translated


def _adaptive_backward(n: int):
    def translated(b: Body, gy, x):
        op = getattr(b, f"adaptive_avg_pool{n}d_grad")
        return batched(b, n, lambda gy: op(gy, size=list(x.shape[-n:])), gy)

    return translated


for _n in (1, 2, 3):
    for _op in (f"max_pool{_n}d", f"max_pool{_n}d_with_indices"):
        RULES[f"{_op}.default"] = _pool(_op, _n, _MAX)
    RULES[f"max_pool{_n}d_with_indices_backward.default"] = _max_pool_backward(_n)
    RULES[f"avg_pool{_n}d.default"] = _pool(f"avg_pool{_n}d", _n, _AVG)
    RULES[f"avg_pool{_n}d_backward.default"] = _avg_pool_backward(_n)
    for _prefix in ("", "_"):
        RULES[f"{_prefix}adaptive_avg_pool{_n}d.default"] = _adaptive(_n, "avg")
        RULES[f"{_prefix}adaptive_avg_pool{_n}d_backward.default"] = _adaptive_backward(_n)
    RULES[f"adaptive_max_pool{_n}d.default"] = _adaptive(_n, "max")


# --- resizing ---

# By ATen's name: how many axes, what the mode is called here, whether corners can be aligned.
_RESIZED = {
    **{f"upsample_nearest{n}d": (n, "nearest", False) for n in (1, 2, 3)},
    **{f"_upsample_nearest_exact{n}d": (n, "nearest-exact", False) for n in (1, 2, 3)},
    "upsample_linear1d": (1, "linear", True), "upsample_bilinear2d": (2, "bilinear", True),
    "upsample_bicubic2d": (2, "bicubic", True), "upsample_trilinear3d": (3, "trilinear", True),
}  # fmt: skip


def _scales(given: tuple) -> list[float] | None:
    """Scales as PyTorch passes them: a list of them (or None), or one for each axis."""
    listed = given[0] if len(given) == 1 and isinstance(given[0], list | tuple) else given
    return [float(s) for s in listed] if listed and all(listed) else None


def _resize(n: int, mode: str, has_corners: bool):
    def translated(b: Body, x, size, *rest):
        corners, *scales = rest if has_corners else (False, *rest)
        scale, size = _scales(tuple(scales)), list(b.out.shape[-n:])
        if scale and all(s.is_integer() for s in scale):
            size = None  # that of the scale
        op = getattr(b, f"upsample{n}d")
        y = op(x, mode=mode, align_corners=bool(corners), scale=scale, size=size)
        if b.out.dtype.is_float or mode.startswith("nearest"):
            return y
        return b.clip(b.round(y), low=0.0, high=255.0)  # bytes

    return translated


def _resize_backward(n: int, mode: str, has_corners: bool):
    def translated(b: Body, gy, _, input_size, *rest):
        corners, *scales = rest if has_corners else (False, *rest)
        attrs = {"size": list(input_size[-n:]), "scale": _scales(tuple(scales))}
        op = getattr(b, f"upsample{n}d_grad")
        return op(gy, mode=mode, align_corners=bool(corners), **attrs)

    return translated


for _name, _form in _RESIZED.items():
    RULES[f"{_name}.default"] = RULES[f"{_name}.vec"] = _resize(*_form)
    RULES[f"{_name}_backward.default"] = _resize_backward(*_form)


@rule("grid_sampler_2d.default", "grid_sampler.default")
def grid_sample(b: Body, x, grid, *how):
    return b.grid_sample2d(x, grid, **_sampling(x, *how))


@rule("grid_sampler_2d_backward.default")
def grid_sample_backward(b: Body, gy, x, grid, mode, padding, align_corners, _):
    return b.grid_sample2d_grad(gy, x, grid, **_sampling(x, mode, padding, align_corners))


def _sampling(x: Var, mode, padding, align_corners) -> dict[str, Any]:
    if mode > 1 or x.type.rank != 4:
        raise Untranslatable("grid_sample of volumes, or bicubic")
    modes, paddings = ("bilinear", "nearest"), ("zeros", "border", "reflection")
    return {"mode": modes[mode], "padding_mode": paddings[padding], "align_corners": align_corners}


_WINDOW = ("kernel", "dilation", "padding", "stride")


@rule("im2col.default")
def im2col(b: Body, x, *window):
    attrs = _sides(2, **dict(zip(_WINDOW, window, strict=True)))
    return batched(b, 2, lambda x: b.im2col(x, **attrs), x)


@rule("col2im.default")
def col2im(b: Body, x, size, *window):
    attrs = _sides(2, **dict(zip(_WINDOW, window, strict=True)))
    return batched(b, 1, lambda x: b.col2im(x, size=list(size), **attrs), x)
