"""Images sampled at places that a tensor gives."""

from __future__ import annotations

from math import prod

import numpy as np

from opstep.kernels.conv.cuda_direct import cleared
from opstep.kernels.conv.windows import want_images
from opstep.kernels.matmul.products import pieces
from opstep.kernels.pool import cuda_grid_sample as gpu
from opstep.kernels.pool.sampling import looked_at, nothing_at, place_of, weight_of
from opstep.runtime.device.builtin import clear_run, offset, pick
from opstep.runtime.device.launch import Arg, Launch, Scratch
from opstep.runtime.ir.op import Mismatch, Op
from opstep.runtime.ir.types import f64, i64

MODES = ("bilinear", "nearest")
PADDINGS = ("zeros", "border", "reflection")
_BLOCK = 128  # places whose pixels are looked up at a time, for all channels
_GRAIN = 8192  # samples under which another lane is not woken
_ATTRS = 'mode: str = "bilinear", padding_mode: str = "zeros", align_corners: bool = false)'


def _check(name: str, x, grid, mode: str, padding_mode: str, at: int) -> None:
    want_images(name, x, at)
    if mode not in MODES:
        raise Mismatch(f'mode is "bilinear" or "nearest", not "{mode}"', "mode")
    if padding_mode not in PADDINGS:
        raise Mismatch(
            f'padding_mode is "zeros", "border" or "reflection", not "{padding_mode}"',
            "padding_mode",
        )
    if grid.rank != 4 or grid.shape[3] != 2 or grid.shape[0] != x.shape[0]:
        raise Mismatch(f"{name} takes a grid [{x.shape[0]}, H', W', 2], not {grid}", at + 1)
    if 0 in x.shape[2:]:
        raise Mismatch(f"images {x} have no pixels", at)


def _options(mode: str, padding_mode: str, align_corners: bool) -> tuple[int, int, bool]:
    """As kernels take them: whether the nearest pixel is taken, the padding, whether corners are
    centres.
    """
    return MODES.index(mode), PADDINGS.index(padding_mode), align_corners


def _tables() -> tuple:
    """Memory for what `look_up` writes and for sums of places, and how much a lane has of each."""
    tables = Scratch(i64, 4 * _BLOCK, per_lane=True), Scratch(f64, 8 * _BLOCK, per_lane=True)
    return (*tables, *(table.size for table in tables))


def _by_places(
    kernel, values: Arg, x: Arg, grid: Arg, y: Arg, options: tuple[int, int, bool]
) -> Launch:
    """Units are `_BLOCK` places of an image."""
    samples, channels = prod(grid.shape[1:3]), x.shape[1]
    operands = (values, grid, y) if values is x else (values, x, grid, y)
    return Launch(
        *(kernel, *operands, *_tables(), channels, *x.shape[2:], samples, *options),
        units=grid.shape[0] * -(-samples // _BLOCK) if y.size else 0,
        grain=max(1, _GRAIN // (_BLOCK * max(1, channels))),
    )


# --- places ---------------------------------------------------------------------------------------


def _places(grid, plane, padding_mode: str, aligned: bool):
    """For oracles: places along rows and columns, with their derivatives."""
    found = np.vectorize(place_of, otypes=[float, float], excluded=[1, 2, 3])
    padding = PADDINGS.index(padding_mode)
    with np.errstate(invalid="ignore"):
        return [found(grid[..., 1 - k], size, padding, aligned) for k, size in enumerate(plane)]


def _corners(grid, plane, mode: str, padding_mode: str, aligned: bool):
    """For oracles: (row, column, weight, its derivatives by row and column) of what is summed, with
    whether it lies inside.
    """
    (ys, _), (xs, _) = _places(grid, plane, padding_mode, aligned)
    if mode == "nearest":
        corners = [(np.rint(ys), np.rint(xs), np.ones_like(xs), 0 * xs, 0 * xs)]
    else:
        top, left = np.floor(ys), np.floor(xs)
        v, u = ys - top, xs - left
        corners = [
            (top, left, (1 - v) * (1 - u), u - 1, v - 1),
            (top, left + 1, (1 - v) * u, -u, 1 - v),
            (top + 1, left, v * (1 - u), 1 - u, -v),
            (top + 1, left + 1, v * u, u, v),
        ]
    for row, column, *weights in corners:
        inside = (row >= 0) & (row < plane[0]) & (column >= 0) & (column < plane[1])
        yield (
            np.where(inside, row, 0).astype(int),
            np.where(inside, column, 0).astype(int),
            inside,
            *weights,
        )


def _nothing(grid, mode: str, padding_mode: str):
    """For oracles: sums of no pixels, by both coordinates."""
    zeros = mode == "bilinear" and padding_mode == "zeros"
    return np.where(np.isnan(grid) & zeros, np.nan, 0.0)


# --- ops ------------------------------------------------------------------------------------------


class grid_sample2d(Op):
    """Images sampled at the places of a grid: (-1, -1) is the top left corner, (1, 1) the bottom
    right one.

    x [N, C, H, W], grid [N, H', W', 2] of (column, row); y [N, C, H', W']. Places outside the image
    sample zeros, its border, or its reflection. With `align_corners`, -1 and 1 are the centres of
    the pixels in the corners, else their outer edges. Where a coordinate is NaN, the result is NaN
    if zeros are interpolated; the nearest is a zero, and other paddings take the first pixel.
    """

    choices = {"mode": MODES, "padding_mode": PADDINGS}
    signature = f"grid_sample2d(x: F, grid: F, *, {_ATTRS}"
    source = "torch.nn.functional.grid_sample, ATen grid_sampler_2d, ONNX GridSample"

    def infer(x, grid, *, mode, padding_mode, align_corners):
        _check("grid_sample2d", x, grid, mode, padding_mode, 0)
        return x.with_shape((*x.shape[:2], *grid.shape[1:3]))

    def oracle(x, grid, *, mode, padding_mode, align_corners):
        n = np.arange(x.shape[0])[:, None, None]
        y = np.zeros((x.shape[0], *grid.shape[1:3], x.shape[1]), x.dtype)
        corners = _corners(grid, x.shape[2:], mode, padding_mode, align_corners)
        for row, column, inside, weight, *_ in corners:
            y += np.where(inside[..., None], x[n, :, row, column] * weight[..., None], 0.0)
        y += _nothing(grid, mode, padding_mode).sum(-1, keepdims=True)
        return y.transpose(0, 3, 1, 2)

    def cpu(x, grid, y, *, mode, padding_mode, align_corners):
        return _by_places(sample, x, x, grid, y, _options(mode, padding_mode, align_corners))

    def cuda(x, grid, y, **attrs):
        if not y.size or not gpu.within_reach(x, y):
            return grid_sample2d.cpu(x, grid, y, **attrs)
        return gpu.sampled(x, grid, y, *_options(**attrs))

    def grad(g, operands, results, grads, **attrs):
        return g.grid_sample2d_grad(grads[0], *operands, **attrs)

    def flops(x, grid, *, mode, **attrs):
        per_sample = 1 if mode == "nearest" else 8
        return x.with_shape((*x.shape[:2], *grid.shape[1:3])).size * per_sample


class grid_sample2d_grad(Op):
    """The derivatives of `grid_sample2d` by x and by the grid: gx, ggrid from gy [N, C, H', W']."""

    choices = {"mode": MODES, "padding_mode": PADDINGS}
    signature = f"grid_sample2d_grad(gy: F, x: F, grid: F, *, {_ATTRS}"
    source = "ATen grid_sampler_2d_backward"
    results = ("gx", "ggrid")
    grad = None

    def infer(gy, x, grid, *, mode, padding_mode, align_corners):
        _check("grid_sample2d_grad", x, grid, mode, padding_mode, 1)
        y = x.with_shape((*x.shape[:2], *grid.shape[1:3]))
        if gy.shape != y.shape:
            raise Mismatch(f"grid_sample2d of {x} and {grid} gives {y}, not {gy}", 0)
        return x, grid

    def oracle(gy, x, grid, *, mode, padding_mode, align_corners):
        n = np.arange(x.shape[0])[:, None, None]
        gx = np.zeros((x.shape[0], *x.shape[2:], x.shape[1]), x.dtype)
        ggrid = _nothing(grid, mode, padding_mode)[..., ::-1].copy()
        gy = gy.transpose(0, 2, 3, 1)
        places = _places(grid, x.shape[2:], padding_mode, align_corners)
        corners = _corners(grid, x.shape[2:], mode, padding_mode, align_corners)
        for row, column, inside, weight, by_row, by_column in corners:
            share = np.where(inside[..., None], gy * weight[..., None], 0.0)
            np.add.at(gx, (np.broadcast_to(n, row.shape), row, column), share)
            products = np.where(inside[..., None], gy * x[n, :, row, column], 0.0).sum(-1)
            for k, by in ((0, by_column), (1, by_row)):
                slope = places[1 - k][1]
                if mode == "bilinear":
                    ggrid[..., k] += np.where(slope != 0, products * by * slope, 0.0)
        return gx.transpose(0, 3, 1, 2), ggrid

    def cpu(gy, x, grid, gx, ggrid, *, mode, padding_mode, align_corners):
        options = _options(mode, padding_mode, align_corners)
        images, channels = x.shape[:2]
        samples = prod(gy.shape[2:])
        some = -(-channels // min(max(1, channels), pieces()))  # that places are found once for
        scattered = Launch(
            *(scatter_samples, gy, grid, gx, *_tables(), channels, *x.shape[2:], samples, some),
            *options,
            units=images * -(-channels // some) if gx.size else 0,
            grain=max(1, _GRAIN // max(1, some * samples)),
        )
        return [scattered, _by_places(slopes_of_samples, gy, x, grid, ggrid, options)]

    def cuda(gy, x, grid, gx, ggrid, **attrs):
        if not gpu.within_reach(x, gy):
            return grid_sample2d_grad.cpu(gy, x, grid, gx, ggrid, **attrs)
        nearest, *options = _options(**attrs)
        launches = gpu.by_images(gy, grid, gx, nearest, *options) if gx.size else []
        if ggrid.size:
            slopes = [] if nearest else gpu.by_grid(gy, x, grid, ggrid, *options)
            launches += slopes or [cleared(ggrid)]
        return launches

    def flops(gy, *others, mode, **attrs):
        return gy.size * (1 if mode == "nearest" else 24)


# --- kernels --------------------------------------------------------------------------------------


def look_up(grid, first, count, pixels, weights, height, width, nearest, padding, aligned):
    """The pixels around `count` places, and their weights: four for each place, a row of `_BLOCK`
    for each of the four; -1 where there is no pixel.
    """
    if padding == 2:  # with the remainder of a reflection, LLVM does not vectorise the loop
        for q in range(count):
            look_at(grid, first, q, pixels, weights, height, width, nearest, 2, aligned)
    else:
        at_border = min(padding, 1)
        for q in range(count):
            look_at(grid, first, q, pixels, weights, height, width, nearest, at_border, aligned)


def look_at(grid, first, q, pixels, weights, height, width, nearest, padding, aligned):
    top, left, down, right, _, _ = looked_at(
        grid, first + q, height, width, nearest, padding, aligned
    )
    for k in range(4):
        h, w = top + k // 2, left + k % 2
        inside = 0 <= h < height and 0 <= w < width and not (nearest and k > 0)
        pixels[k * _BLOCK + q] = h * width + w if inside else -1
        weights[k * _BLOCK + q] = np.float64(1) if nearest else weight_of(k, down, right)


def sample(
    x, grid, y, pixel_lanes, lanes, pixel_size, size, channels, height, width, samples, nearest,
    padding, aligned, lo, hi, lane,
):  # fmt: skip
    """A unit is `_BLOCK` places of an image."""
    pixels, weights = offset(pixel_lanes, lane * pixel_size), offset(lanes, lane * size)
    nothing = offset(weights, 4 * _BLOCK)
    blocks = (samples + _BLOCK - 1) // _BLOCK
    for unit in range(lo, hi):
        image, q0 = unit // blocks, unit % blocks * _BLOCK
        first, count = image * samples + q0, min(_BLOCK, samples - q0)
        look_up(grid, first, count, pixels, weights, height, width, nearest, padding, aligned)
        for q in range(count):
            nothing[q] = 0
            if not nearest:
                nothing[q] += nothing_at(grid[2 * (first + q)], padding)
                nothing[q] += nothing_at(grid[2 * (first + q) + 1], padding)
        for plane in range(image * channels, (image + 1) * channels):
            source = offset(x, plane * height * width)
            target = offset(y, plane * samples + q0)
            if nearest:
                for q in range(count):
                    target[q] = nothing[q] + seen(source, pixels[q]) * weights[q]
            else:
                for q in range(count):
                    total = nothing[q]
                    for k in range(4):
                        total += seen(source, pixels[k * _BLOCK + q]) * weights[k * _BLOCK + q]
                    target[q] = total


def seen(plane, at):
    """The pixel there, or 0."""
    return pick(at < 0, 0.0, plane[max(0, at)])


def scatter_samples(
    gy, grid, gx, pixel_lanes, lanes, pixel_size, size, channels, height, width, samples, some,
    nearest, padding, aligned, lo, hi, lane,
):  # fmt: skip
    """A unit is `some` planes of an image's gx."""
    pixels, weights = offset(pixel_lanes, lane * pixel_size), offset(lanes, lane * size)
    parts = (channels + some - 1) // some
    for unit in range(lo, hi):
        image, c0 = unit // parts, unit % parts * some
        begin, end = image * channels + c0, image * channels + min(channels, c0 + some)
        clear_run(offset(gx, begin * height * width), gy, (end - begin) * height * width)
        for q0 in range(0, samples, _BLOCK):
            count = min(_BLOCK, samples - q0)
            look_up(
                grid, image * samples + q0, count, pixels, weights, height, width, nearest, padding,
                aligned,
            )  # fmt: skip
            for plane in range(begin, end):
                to = offset(gx, plane * height * width)
                source = offset(gy, plane * samples + q0)
                for q in range(count):
                    for k in range(1 if nearest else 4):
                        at = pixels[k * _BLOCK + q]
                        if at >= 0:
                            to[at] += source[q] * weights[k * _BLOCK + q]


def slopes_of_samples(
    gy, x, grid, ggrid, pixel_lanes, lanes, pixel_size, size, channels, height, width, samples,
    nearest, padding, aligned, lo, hi, lane,
):  # fmt: skip
    """A unit is `_BLOCK` places of an image."""
    pixels, weights = offset(pixel_lanes, lane * pixel_size), offset(lanes, lane * size)
    products = offset(weights, 4 * _BLOCK)
    blocks = (samples + _BLOCK - 1) // _BLOCK
    for unit in range(lo, hi):
        image, q0 = unit // blocks, unit % blocks * _BLOCK
        first, count = image * samples + q0, min(_BLOCK, samples - q0)
        look_up(grid, first, count, pixels, weights, height, width, nearest, padding, aligned)
        for i in range(4 * _BLOCK):
            products[i] = 0
        for plane in range(
            image * channels, image * channels if nearest else (image + 1) * channels
        ):
            source = offset(x, plane * height * width)
            given = offset(gy, plane * samples + q0)
            for k in range(4):
                at, total = offset(pixels, k * _BLOCK), offset(products, k * _BLOCK)
                for q in range(count):
                    total[q] += pick(at[q] < 0, 0.0, given[q] * source[max(0, at[q])])
        for q in range(count):
            _, _, down, right, along, across = looked_at(
                grid, first + q, height, width, nearest, padding, aligned
            )
            by_column, by_row = np.float64(0), np.float64(0)
            if not nearest:
                by_column += nothing_at(grid[2 * (first + q) + 1], padding)
                by_row += nothing_at(grid[2 * (first + q)], padding)
                for k in range(4):
                    vertical = down if k // 2 else 1 - down
                    horizontal = right if k % 2 else 1 - right
                    total = products[k * _BLOCK + q]
                    if across != 0 and pixels[k * _BLOCK + q] >= 0:
                        by_column += total * (vertical if k % 2 else -vertical) * across
                    if along != 0 and pixels[k * _BLOCK + q] >= 0:
                        by_row += total * (horizontal if k // 2 else -horizontal) * along
            ggrid[2 * (first + q)] = by_column
            ggrid[2 * (first + q) + 1] = by_row
