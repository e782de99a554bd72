"""Over sequences, images and volumes: convolutions and pools."""

from __future__ import annotations

from math import prod
from typing import Any

from opstep.frontends.onnx.body import Body, Var
from opstep.frontends.onnx.errors import Untranslatable
from opstep.frontends.onnx.rules.registry import rule
from opstep.frontends.onnx.values import listed
from opstep.runtime.ir.dims import Expr
from opstep.runtime.ir.types import i64


def padding_of(
    auto_pad: str, pads: Any, sizes: Any, kernel: Any, stride: Any, dilation: Any
) -> list[int]:
    """Before each axis, then behind."""
    if auto_pad in ("NOTSET", ""):
        return list(pads) if pads else [0] * (2 * len(kernel))
    if auto_pad == "VALID":
        return [0] * (2 * len(kernel))
    sums = []
    for size, k, s, d in zip(sizes, kernel, stride, dilation, strict=True):
        reach = (k - 1) * d + 1
        if isinstance(size, Expr):
            if s != 1:
                raise Untranslatable(f"auto_pad {auto_pad} of a size that is not known")
            sums.append(reach - 1)
        else:
            sums.append(max((-(-size // s) - 1) * s + reach - size, 0))
    small = [t // 2 for t in sums]
    large = [t - k for t, k in zip(sums, small, strict=True)]
    return [*small, *large] if auto_pad == "SAME_UPPER" else [*large, *small]


def both(pads: list[int]) -> list[int]:
    """As our ops have it: one number an axis, where both ends have the same."""
    half = len(pads) // 2
    return pads[:half] if pads[:half] == pads[half:] else pads


def axes_count(x: Var) -> int:
    n = x.type.rank - 2
    if n not in (1, 2, 3):
        raise Untranslatable(f"windows over {n} axes")
    return n


@rule("Conv")
def conv(
    b: Body, x, w, bias=None, *, auto_pad="NOTSET", dilations=None, group=1, kernel_shape=None,
    pads=None, strides=None,
):  # fmt: skip
    window = windows_of(x, w, auto_pad, dilations, group, kernel_shape, pads, strides)
    return getattr(b, f"conv{axes_count(x)}d")(x, w, bias, **window)


def windows_of(
    x: Var, w: Var, auto_pad="NOTSET", dilations=None, group=1, kernel_shape=None, pads=None,
    strides=None,
) -> dict[str, Any]:  # fmt: skip
    """The attributes of a convolution."""
    n = axes_count(x)
    stride, dilation = strides or [1] * n, dilations or [1] * n
    padding = padding_of(auto_pad, pads, x.shape[2:], w.shape[2:], stride, dilation)
    return {"stride": stride, "padding": both(padding), "dilation": dilation, "groups": group}


@rule("ConvTranspose")
def conv_transpose(
    b: Body, x, w, bias=None, *, auto_pad="NOTSET", dilations=None, group=1, kernel_shape=None,
    output_padding=None, output_shape=None, pads=None, strides=None,
):  # fmt: skip
    n = axes_count(x)
    stride, dilation = strides or [1] * n, dilations or [1] * n
    more = output_padding or [0] * n
    padding = list(pads) if pads else [0] * (2 * n)
    if output_shape or auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        sizes = [d * s for d, s in zip(x.shape[2:], stride, strict=True)]
        sizes = output_shape[-n:] if output_shape else sizes
        small, large = [], []
        for k in range(n):
            reach = (w.shape[2 + k] - 1) * dilation[k] + 1
            total = stride[k] * (x.shape[2 + k] - 1) + more[k] + reach - sizes[k]
            if not isinstance(total, int):
                raise Untranslatable("output_shape of a size that is not known")
            if total < 0:
                more[k], total = more[k] - total, 0
            small.append(total // 2)
            large.append(total - total // 2)
        padding = [*small, *large] if auto_pad == "SAME_UPPER" else [*large, *small]
    attrs = {"stride": stride, "padding": both(padding), "dilation": dilation, "groups": group}
    op = getattr(b, f"conv_transpose{n}d")
    if any(m >= max(s, d) for m, s, d in zip(more, stride, dilation, strict=True)):
        y = op(x, w, bias, **attrs)
        behind = [0] * (y.type.rank + 2) + more
        if bias is None:
            return b.pad(y, pads=behind)
        return b.add(b.pad(op(x, w, **attrs), pads=behind), b.reshape(bias, shape=[-1, *[1] * n]))
    return op(x, w, bias, **attrs, output_padding=more)


# --- pools ---


def _window(x: Var, kernel: Any, auto_pad: str, dilations: Any, pads: Any, strides: Any) -> dict:
    n = axes_count(x)
    stride, dilation = strides or [1] * n, dilations or [1] * n
    padding = padding_of(auto_pad, pads, x.shape[2:], kernel, stride, dilation)
    return {"kernel": kernel, "stride": stride, "padding": padding, "dilation": dilation}


@rule("MaxPool")
def max_pool(
    b: Body, x, *, kernel_shape, auto_pad="NOTSET", ceil_mode=0, dilations=None, pads=None,
    storage_order=0, strides=None,
):  # fmt: skip
    n = axes_count(x)
    window = _window(x, kernel_shape, auto_pad, dilations, pads, strides)
    window["padding"] = both(window["padding"])
    window["ceil_mode"] = bool(ceil_mode)
    if not b.wants(1):
        return getattr(b, f"max_pool{n}d")(x, **window)
    y, places = getattr(b, f"max_pool{n}d_with_indices")(x, **window)
    return y, _whole_places(b, x, places, storage_order)


def _whole_places(b: Body, x: Var, places: Var, storage_order: int) -> Var:
    """Places in the whole tensor, of those in a plane."""
    sizes, n = x.shape[2:], x.type.rank - 2
    if storage_order:  # columns first
        found, rest = None, places
        for k in range(n - 1, -1, -1):
            size = b.size(sizes[k], i64)
            along, rest = b.rem(rest, size), b.floor_div(rest, size)
            step: Any = 1
            for d in sizes[:k]:
                step = step * d
            term = b.mul(along, b.size(step, i64))
            found = term if found is None else b.add(found, term)
        places = found  # pyright: ignore[reportAssignmentType]
    plane: Any = 1
    for d in sizes:
        plane = plane * d
    count = x.shape[0] * x.shape[1]
    if count == 1:
        return places
    first = b.mul(b.iota(shape=[count]), b.size(plane, i64))
    return b.add(places, b.reshape(first, shape=[*x.shape[:2], *[1] * n]))


@rule("AveragePool")
def average_pool(
    b: Body, x, *, kernel_shape, auto_pad="NOTSET", ceil_mode=0, count_include_pad=0,
    dilations=None, pads=None, strides=None,
):  # fmt: skip
    n = axes_count(x)
    window = _window(x, kernel_shape, auto_pad, dilations, pads, strides)
    if all(d == 1 for d in window.pop("dilation")) and _is_plain(window["padding"], kernel_shape):
        window["padding"] = both(window["padding"])
        how = {"ceil_mode": bool(ceil_mode), "count_include_pad": bool(count_include_pad)}
        return getattr(b, f"avg_pool{n}d")(x, **window, **how)
    attrs = {**window, "dilation": dilations or [1] * n}
    total = _sum_pool(b, x, attrs, bool(ceil_mode))
    ones = b.ones(shape=list(x.shape), dtype=x.dtype)
    if count_include_pad:
        ones = b.pad(
            ones, pads=[0, 0, *window["padding"][:n], 0, 0, *window["padding"][n:]], value=1
        )
        attrs = {**attrs, "padding": [0] * (2 * n)}
        return b.div(total, _sum_pool(b, ones, attrs, bool(ceil_mode), total.shape))
    return b.div(total, _sum_pool(b, ones, attrs, bool(ceil_mode)))


def _is_plain(padding: list[int], kernel: list[int]) -> bool:
    return all(p <= k // 2 for p, k in zip(padding, [*kernel, *kernel], strict=True))


def _sum_pool(b: Body, x: Var, window: dict, ceil_mode: bool, wanted: Any = None) -> Var:
    """Sums over windows: a convolution with ones. Windows that begin in the image count, if that is
    asked for, though they end beyond.
    """
    n, kernel = x.type.rank - 2, window["kernel"]
    padding = list(window["padding"])
    for k in range(n) if ceil_mode else ():
        size, stride = x.shape[2 + k], window["stride"][k]
        if isinstance(size, Expr):
            raise Untranslatable("ceil_mode of a size that is not known")
        reach = window["dilation"][k] * (kernel[k] - 1) + 1
        free = size + padding[k] + padding[n + k] - reach
        count = -(-free // stride) + 1
        if wanted is None and (count - 1) * stride >= size + padding[k]:
            count -= 1
        count = count if wanted is None else wanted[2 + k]
        padding[n + k] += max((count - 1) * stride - free, 0)
    flat = b.reshape(x, shape=[x.shape[0] * x.shape[1], 1, *x.shape[2:]])
    ones = b.ones(shape=[1, 1, *kernel], dtype=x.dtype)
    attrs = {"stride": window["stride"], "padding": both(padding), "dilation": window["dilation"]}
    y = getattr(b, f"conv{n}d")(flat, ones, **attrs)
    return b.reshape(y, shape=[*x.shape[:2], *y.shape[2:]])


@rule("LpPool")
def lp_pool(
    b: Body, x, *, kernel_shape, auto_pad="NOTSET", ceil_mode=0, dilations=None, p=2, pads=None,
    strides=None,
):  # fmt: skip
    window = _window(x, kernel_shape, auto_pad, dilations, pads, strides)
    powers = b.square(x) if p == 2 else b.abs(x) if p == 1 else b.pow(b.abs(x), float(p))
    total = _sum_pool(b, powers, window, bool(ceil_mode))
    return b.sqrt(total) if p == 2 else total if p == 1 else b.pow(total, 1.0 / p)


@rule("GlobalAveragePool")
def global_average_pool(b: Body, x):
    if x.type.rank == 4:
        return b.global_avg_pool2d(x)
    return b.mean(x, axes=list(range(2, x.type.rank)), keepdims=True)


@rule("GlobalMaxPool")
def global_max_pool(b: Body, x):
    return b.max(x, axes=list(range(2, x.type.rank)), keepdims=True)


@rule("GlobalLpPool")
def global_lp_pool(b: Body, x, *, p=2):
    return b.norm(x, p=float(p), axes=list(range(2, x.type.rank)), keepdims=True)


@rule("MaxUnpool", known=[2])
def max_unpool(b: Body, x, places, shape=None, *, kernel_shape, pads=None, strides=None):
    """Elements at their places, which are those in the whole tensor."""
    n = axes_count(x)
    strides, pads = strides or [1] * n, pads or [0] * (2 * n)
    sizes: list[Any] = [
        (x.shape[2 + k] - 1) * strides[k] - pads[k] - pads[n + k] + kernel_shape[k]
        for k in range(n)
    ]
    own = [*x.shape[:2], *sizes]
    if not all(isinstance(d, int) for d in own):
        raise Untranslatable("MaxUnpool of sizes that are not known")
    whole, count = prod(own), prod(x.shape)
    flat = b.zeros(shape=[whole], dtype=x.dtype)
    found = b.scatter(flat, b.reshape(places, shape=[count]), b.reshape(x, shape=[count]))
    y = b.reshape(found, shape=own)
    if shape is None or listed(shape) == own:
        return y
    return b.pad(y, pads=[0] * (n + 2) + [w - d for w, d in zip(listed(shape), own, strict=True)])


@rule("Col2Im", known=[1, 2])
def col2im(b: Body, x, image, block, *, dilations=None, pads=None, strides=None):
    image, block = listed(image), listed(block)
    if len(image) != 2:
        return _columns(b, x, image, block, dilations, pads, strides)
    attrs = {"stride": strides or [1, 1], "dilation": dilations or [1, 1]}
    pads = pads or [0, 0, 0, 0]
    if pads[:2] == pads[2:]:
        return b.col2im(x, size=image, kernel=block, padding=pads[:2], **attrs)
    wide = [d + pads[k] + pads[k + 2] for k, d in enumerate(image)]
    y = b.col2im(x, size=wide, kernel=block, **attrs)
    return b.pad(y, pads=[0, 0, *(-p for p in pads[:2]), 0, 0, *(-p for p in pads[2:])])


def _columns(
    b: Body, x: Var, image: list, block: list, dilations: Any, pads: Any, strides: Any
) -> Var:
    """Col2Im over one axis or three: a transposed convolution whose filters are single ones."""
    n, window = len(image), prod(block)
    stride, dilation, pads = strides or [1] * n, dilations or [1] * n, pads or [0] * (2 * n)
    if n not in (1, 3) or not isinstance(x.shape[1], int):
        raise Untranslatable(f"Col2Im over {n} axes")
    channels = x.shape[1] // window
    counts, more = [], []
    for k in range(n):
        reach = dilation[k] * (block[k] - 1) + 1
        free = image[k] + pads[k] + pads[n + k] - reach
        counts.append(free // stride[k] + 1)
        more.append(free % stride[k])
    wide = b.reshape(x, shape=[x.shape[0], x.shape[1], *counts])
    ones = b.tile(b.eye(shape=[window, window], dtype=x.dtype), repeats=[channels, 1])
    w = b.reshape(ones, shape=[channels * window, 1, *block])
    attrs = {"stride": stride, "padding": both(pads), "dilation": dilation, "groups": channels}
    return getattr(b, f"conv_transpose{n}d")(wide, w, **attrs, output_padding=more)


@rule("LRN")
def lrn(b: Body, x, *, alpha=0.0001, beta=0.75, bias=1.0, size):
    """Sums over channels near each one."""
    before, rank = (size - 1) // 2, x.type.rank
    pads = [0, before, *[0] * (rank - 2), 0, size - 1 - before, *[0] * (rank - 2)]
    squares = b.pad(b.square(x), pads=pads)
    total = None
    for k in range(size):
        part = b.slice(squares, starts=[k], ends=[k + x.shape[1]], axes=[1])
        total = part if total is None else b.add(total, part)
    scale = b.pow(b.add(b.mul(total, alpha / size), bias), beta)
    return b.div(x, scale)
