"""Images looked at between their pixels: what `grid_sample2d` has no form for, made of gathers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

from opstep.frontends.onnx.body import Body, Var
from opstep.frontends.onnx.errors import Untranslatable
from opstep.frontends.onnx.rules.registry import rule
from opstep.frontends.onnx.rules.spatial import padding_of
from opstep.runtime.ir.types import i64

CUBIC = -0.75


def sampled(b: Body, x: Var, places: Sequence[Var], mode: str, padding: str) -> list[Var]:
    """What each pixel near a place adds to it. x [N, C, *sizes]; a place has a number for each
    axis, [N, P]; what is added is [N, C, P].
    """
    sizes = x.shape[2:]
    if not all(isinstance(d, int) for d in sizes):
        raise Untranslatable("sampling of sizes that are not known")
    taps = {"nearest": [0], "linear": [0, 1], "cubic": [-1, 0, 1, 2]}[mode]
    axes = []
    for place in places:
        first = b.round(place) if mode == "nearest" else b.floor(place)
        rest = b.sub(place, first)
        axes.append([(b.add(first, float(t)), _weight(b, rest, t, mode)) for t in taps])
    flat = b.reshape(x, shape=[*x.shape[:2], _size(sizes)])
    found = []
    for corner in product(*axes):
        index, weight, inside = None, None, None
        for (at, w), size in zip(corner, sizes, strict=True):
            if padding == "zeros":
                within = b.logical_and(b.greater_equal(at, 0.0), b.less_equal(at, size - 1.0))
                inside = within if inside is None else b.logical_and(inside, within)
            pixel = b.cast(b.clip(at, low=0.0, high=size - 1.0), dtype=i64)
            index = pixel if index is None else b.add(b.mul(index, size), pixel)
            if w is not None:
                weight = w if weight is None else b.mul(weight, w)
        assert index is not None
        wide = b.broadcast(b.unsqueeze(index, axes=[1]), shape=[*x.shape[:2], index.shape[1]])
        value = b.gather_elements(flat, wide, axis=2)
        if weight is not None:
            value = b.mul(value, b.to(b.unsqueeze(weight, axes=[1]), x.dtype))
        found.append(
            value if inside is None else b.where(b.unsqueeze(inside, axes=[1]), value, 0.0)
        )
    return found


def _size(sizes: Sequence[Any]) -> int:
    total = 1
    for d in sizes:
        total *= d
    return total


def _weight(b: Body, rest: Var, tap: int, mode: str) -> Var | None:
    """Of a pixel, `tap` behind the place before which `rest` lies."""
    if mode == "nearest":
        return None
    if mode == "linear":
        return rest if tap else b.sub(1.0, rest)
    d = b.abs(b.sub(rest, float(tap)))
    if tap in (0, 1):
        inner = b.sub(b.mul(d, CUBIC + 2), CUBIC + 3)
        return b.add(b.mul(b.mul(inner, d), d), 1.0)
    inner = b.add(b.mul(b.sub(d, 5.0), d), 8.0)
    return b.mul(b.sub(b.mul(inner, d), 4.0), CUBIC)


def total(b: Body, terms: Sequence[Var], op: str = "add") -> Var:
    found = terms[0]
    for t in terms[1:]:
        found = getattr(b, op)(found, t)
    return found


@rule("GridSample")
def grid_sample(b: Body, x, grid, *, align_corners=0, mode="linear", padding_mode="zeros"):
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    if x.type.rank == 4 and mode != "cubic":
        how = {"padding_mode": padding_mode, "align_corners": bool(align_corners)}
        return b.grid_sample2d(x, grid, mode="bilinear" if mode == "linear" else mode, **how)
    n = x.type.rank - 2
    if padding_mode == "reflection":
        raise Untranslatable("reflections in a volume, or cubic ones")
    count = _size(grid.shape[1:-1])
    flat = b.reshape(grid, shape=[grid.shape[0], count, n])
    places = []
    for axis in range(n):  # the last axis comes first
        at = b.add(b.select(flat, index=n - 1 - axis, axis=2), 1.0)
        size = x.shape[2 + axis]
        if align_corners:
            places.append(b.mul(at, (size - 1) / 2))
        else:
            places.append(b.sub(b.mul(at, size / 2), 0.5))
    y = total(b, sampled(b, x, places, mode, padding_mode))
    return b.reshape(y, shape=[*x.shape[:2], *grid.shape[1:-1]])


@rule("RoiAlign")
def roi_align(
    b: Body, x, rois, batch, *, coordinate_transformation_mode="half_pixel", mode="avg",
    output_height=1, output_width=1, sampling_ratio=0, spatial_scale=1.0,
):  # fmt: skip
    """Means over points of each part of a box."""
    if not sampling_ratio:
        raise Untranslatable("as many points as the size of a box asks for (sampling_ratio=0)")
    half = 0.5 if coordinate_transformation_mode == "half_pixel" else 0.0
    n, ratio = rois.shape[0], sampling_ratio
    places = []
    for axis, parts in ((1, output_height), (0, output_width)):
        first, last = (
            b.sub(b.mul(b.select(rois, index=k, axis=1), spatial_scale), half)
            for k in (axis, axis + 2)
        )
        extent = b.sub(last, first)
        extent = extent if half else b.maximum(extent, 1.0)
        steps = b.iota(
            shape=[1, parts * ratio], axis=1, start=0.5 / ratio, step=1 / ratio, dtype=x.dtype
        )
        each = b.unsqueeze(b.div(extent, float(parts)), axes=[1])
        places.append(b.add(b.unsqueeze(first, axes=[1]), b.mul(each, steps)))
    rows, columns = output_height * ratio, output_width * ratio
    shape = [n, rows, columns]
    ys = b.reshape(
        b.broadcast(b.unsqueeze(places[0], axes=[2]), shape=shape), shape=[n, rows * columns]
    )
    xs = b.reshape(
        b.broadcast(b.unsqueeze(places[1], axes=[1]), shape=shape), shape=[n, rows * columns]
    )
    inside, clipped = None, []
    for at, size in ((ys, x.shape[2]), (xs, x.shape[3])):
        if not isinstance(size, int):
            raise Untranslatable("sampling of sizes that are not known")
        within = b.logical_and(b.greater_equal(at, -1.0), b.less_equal(at, float(size)))
        inside = within if inside is None else b.logical_and(inside, within)
        clipped.append(b.clip(at, low=0.0, high=size - 1.0))
    own = b.gather(x, batch, axis=0)
    terms = sampled(b, own, clipped, "linear", "border")
    y = total(b, terms, "add" if mode == "avg" else "maximum")
    y = b.where(b.unsqueeze(inside, axes=[1]), y, 0.0)
    parts = [n, x.shape[1], output_height, ratio, output_width, ratio]
    return (b.mean if mode == "avg" else b.max)(b.reshape(y, shape=parts), axes=[3, 5])


@rule("DeformConv")
def deform_conv(
    b: Body, x, w, offset, bias=None, mask=None, *, dilations=None, group=1, kernel_shape=None,
    offset_group=1, pads=None, strides=None,
):  # fmt: skip
    """A product of filters with pixels that are sampled where offsets move them."""
    if x.type.rank != 4:
        raise Untranslatable("DeformConv of what is no image")
    stride, dilation = strides or [1, 1], dilations or [1, 1]
    kernel = list(w.shape[2:])
    padding = padding_of("NOTSET", pads, x.shape[2:], kernel, stride, dilation)
    n, c = x.shape[:2]
    height, width = offset.shape[2:]
    taps, points = kernel[0] * kernel[1], height * width
    moved = b.reshape(offset, shape=[n * offset_group, taps, 2, height, width])
    places = []
    for axis in (0, 1):
        shape = [1, *kernel, height, width]
        tap = b.iota(shape=shape, axis=1 + axis, step=float(dilation[axis]), dtype=x.dtype)
        start = float(-padding[axis])
        place = b.iota(
            shape=shape, axis=3 + axis, start=start, step=float(stride[axis]), dtype=x.dtype
        )
        base = b.reshape(b.add(tap, place), shape=[1, taps, height, width])
        at = b.add(b.select(moved, index=axis, axis=2), base)
        places.append(b.reshape(at, shape=[n * offset_group, taps * points]))
    parts = b.reshape(x, shape=[n * offset_group, c // offset_group, *x.shape[2:]])
    columns = total(b, sampled(b, parts, places, "linear", "zeros"))
    if mask is not None:
        weights = b.reshape(mask, shape=[n * offset_group, 1, taps * points])
        columns = b.mul(columns, weights)
    columns = b.reshape(columns, shape=[n, group, c // group * taps, points])
    filters = b.reshape(w, shape=[group, w.shape[0] // group, w.shape[1] * taps])
    y = b.reshape(b.matmul(filters, columns), shape=[n, w.shape[0], height, width])
    return y if bias is None else b.add(y, b.reshape(bias, shape=[w.shape[0], 1, 1]))
