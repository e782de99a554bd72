"""Convolutions, their derivatives, and windows as columns."""

from __future__ import annotations

from opstep.frontends.onnx.export_nodes import Unsayable
from opstep.frontends.onnx.export_rules import RULES, rule, wide
from opstep.runtime.ir.types import i8, i32, u8


def ends(padding, n):
    """Padding as ONNX has it: before each axis, then behind each."""
    return [*padding, *padding] if len(padding) == n else list(padding)


def _conv(b, t, x, w, bias, stride, padding, dilation, groups):
    windows = {
        "strides": list(stride), "pads": ends(padding, t.rank - 2), "dilations": list(dilation),
        "group": groups,
    }  # fmt: skip
    if t.dtype.is_float:
        return b.onnx("Conv", x, w, bias, out=t, **windows)
    if t.dtype not in (i8, u8):
        raise Unsayable(
            f"ONNX has no convolution of {t.dtype}", "cast to f64, which is exact up to 2**53"
        )
    found = b.onnx("ConvInteger", x, w, out=t.with_dtype(i32), **windows)
    found = b.to(found, t.dtype)
    if bias is None:
        return found
    return b.add(found, b.shaped(bias, (bias.shape[0], *[1] * (t.rank - 2))))


def _conv_integer(b, t, x, w, bias, x_zero, w_zero, stride, padding, dilation, groups):
    windows = {
        "strides": list(stride), "pads": ends(padding, t.rank - 2), "dilations": list(dilation),
        "group": groups,
    }  # fmt: skip

    def of_filters(v):
        return b.shaped(v, (*v.shape, *[1] * (t.rank - 2))) if v.type.rank else v

    if w_zero is None or not w_zero.type.rank:
        found = b.onnx("ConvInteger", x, w, x_zero, w_zero, out=t, **windows)
    else:  # ONNX Runtime takes no zero point of a filter
        found = b.onnx("ConvInteger", x, w, x_zero, out=t, **windows)
        ones = b.broadcast(b.value(1, w.dtype), shape=w.shape)
        seen = b.onnx("ConvInteger", x, ones, x_zero, out=t, **windows)
        found = b.sub(found, b.mul(seen, of_filters(b.to(w_zero, i32))))
    return found if bias is None else b.add(found, of_filters(bias))


def _transposed(b, t, x, w, bias, stride, pads, output_padding, dilation, groups):
    if not t.dtype.is_float:
        raise Unsayable(
            f"ONNX has no transposed convolution of {t.dtype}",
            "cast to f64, which is exact up to 2**53",
        )
    n = t.rank - 2
    pads, more, rest = list(pads), list(output_padding), [0] * n
    for k in range(n):
        if more[k] >= stride[k]:  # ONNX adds less: what it adds is cut off less, or is 0
            kept = min(more[k], pads[n + k])
            pads[n + k] -= kept
            more[k], rest[k] = 0, more[k] - kept
    made = t.with_shape((*t.shape[:2], *(d - r for d, r in zip(t.shape[2:], rest, strict=True))))
    found = b.onnx(
        "ConvTranspose", x, w, None if any(rest) else bias, out=made, strides=list(stride),
        pads=pads, output_padding=more, dilations=list(dilation), group=groups,
    )  # fmt: skip
    if any(rest):
        found = b.pad(found, pads=[0, 0, *[0] * n, 0, 0, *rest])
        found = found if bias is None else b.add(found, b.shaped(bias, (bias.shape[0], *[1] * n)))
    return found


def _conv_transpose(b, t, x, w, bias, stride, padding, output_padding, dilation, groups):
    pads = ends(padding, t.rank - 2)
    return _transposed(b, t, x, w, bias, stride, pads, output_padding, dilation, groups)


def _input_grad(b, t, gy, w, size, stride, padding, dilation, groups):
    """A transposed convolution; what no window reached is 0."""
    n = t.rank - 2
    pads = ends(padding, n)
    more = []
    for k in range(n):
        covered = (gy.shape[2 + k] - 1) * stride[k] + dilation[k] * (w.shape[2 + k] - 1) + 1
        more.append(t.shape[2 + k] + pads[k] + pads[n + k] - covered)
    return _transposed(b, t, gy, w, None, stride, pads, b.ints(more), dilation, groups)


def _weight_grad(b, t, gy, x, kernel, stride, padding, dilation, groups):
    """A convolution whose batch is the channels and whose channels are the batch."""
    if not t.dtype.is_float:
        raise Unsayable(f"ONNX has no convolution of {t.dtype}")
    n = t.rank - 2
    area = list(range(2, 2 + n))
    batch, channels = x.shape[:2]
    filters = gy.shape[1]
    if groups == 1:
        images = b.transpose(x, perm=[1, 0, *area])
        windows = b.transpose(gy, perm=[1, 0, *area])
    else:
        each, made = channels // groups, filters // groups
        after = [k + 1 for k in area]
        split = b.shaped(x, (batch, groups, each, *x.shape[2:]))
        images = b.shaped(
            b.transpose(split, perm=[2, 1, 0, *after]), (each, groups * batch, *x.shape[2:])
        )
        split = b.shaped(gy, (batch, groups, made, *gy.shape[2:]))
        windows = b.shaped(
            b.transpose(split, perm=[1, 2, 0, *after]), (filters, batch, *gy.shape[2:])
        )
    pads = ends(padding, n)
    sizes = [
        (x.shape[2 + k] + pads[k] + pads[n + k] - stride[k] * (gy.shape[2 + k] - 1) - 1)
        // dilation[k]
        + 1
        for k in range(n)
    ]
    made = t.with_shape((images.shape[0], filters, *sizes))
    found = b.onnx(
        "Conv", images, windows, out=made, strides=list(dilation), pads=pads,
        dilations=list(stride), group=groups,
    )  # fmt: skip
    found = b.transpose(found, perm=[1, 0, *area])
    if found.shape != t.shape:
        found = b.slice(found, starts=[0] * n, ends=list(kernel), axes=area)
    return found


for _n in (1, 2, 3):
    RULES[f"conv{_n}d"] = _conv
    RULES[f"conv{_n}d_integer"] = _conv_integer
    RULES[f"conv_transpose{_n}d"] = _conv_transpose
    RULES[f"conv{_n}d_input_grad"] = _input_grad
    RULES[f"conv{_n}d_weight_grad"] = _weight_grad


@rule("im2col")
def _im2col(b, t, x, kernel, stride, padding, dilation):
    """Picked by row, then by column: bit for bit."""
    pads = ends(padding, 2)
    x = b.pad(x, pads=[0, 0, *pads[:2], 0, 0, *pads[2:]])
    counts = [
        (x.shape[2 + k] - dilation[k] * (kernel[k] - 1) - 1) // stride[k] + 1 for k in range(2)
    ]
    axis = 2
    for k in range(2):
        first = b.iota(shape=[1, counts[k]], axis=1, step=stride[k])
        places = b.add(b.iota(shape=[kernel[k], 1], step=dilation[k]), first)
        x = b.gather(x, places, axis=axis)
        axis += 2
    columns = b.transpose(x, perm=[0, 1, 2, 4, 3, 5])
    return b.shaped(columns, t.shape)


@rule("col2im")
@wide
def _col2im(b, t, x, size, kernel, stride, padding, dilation):
    return b.onnx(
        "Col2Im", x, b.vector(t.shape[2:]), b.value(kernel), out=t, dilations=list(dilation),
        pads=ends(padding, 2), strides=list(stride),
    )  # fmt: skip
