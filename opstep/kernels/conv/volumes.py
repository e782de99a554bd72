"""Convolutions of volumes on a GPU, an element of the result a thread."""

from __future__ import annotations

from opstep.kernels.conv.correlation import Geometry
from opstep.kernels.conv.edges import received, sizes
from opstep.kernels.conv.windows import Window
from opstep.runtime.device.builtin import offset
from opstep.runtime.device.launch import Arg, Launch


def _places(x: Arg, g: Geometry) -> tuple:
    """Where outputs look, of each axis: places, how many, stride, size of x, of the output."""
    axes = zip(
        *((g.depth.places, g.rows, g.columns), (g.depth.stride, *g.stride)),
        *(x.shape[2:], (g.depth.out, *g.out)),
        strict=True,
    )
    return tuple(part for seen, *rest in axes for part in (seen, (len(seen), *rest)))


def correlate(x: Arg, w: Arg, bias: Arg | None, y: Arg, groups: int, g: Geometry) -> list[Launch]:
    """y [N, groups*K, D', H', W'] from x [N, groups*C, D, H, W] under filters w."""
    counts = (w.shape[0], w.shape[1], w.shape[0] // groups)
    biased = bias is not None
    return [Launch(convolve, x, w, bias or x, biased, y, *_places(x, g), *counts, units=y.size)]


def convolve(
    x, w, bias, biased, y, depths, planes, downs, rows, rights, columns, all_filters, channels,
    filters, lo, hi,
):  # fmt: skip
    for unit in range(lo, hi):
        j = unit % columns[3] * columns[1]
        i = unit // columns[3] % rows[3] * rows[1]
        z = unit // columns[3] // rows[3] % planes[3] * planes[1]
        place = unit // columns[3] // rows[3] // planes[3]
        f, image = place % all_filters, place // all_filters
        first = (image * (all_filters // filters) + f // filters) * channels
        total = 0.0
        if biased:
            total += bias[f]
        for c in range(channels):
            for t in range(planes[0]):
                d = z + depths[t]
                if 0 <= d < planes[2]:
                    for r in range(rows[0]):
                        h = i + downs[r]
                        if 0 <= h < rows[2]:
                            at = ((first + c) * planes[2] + d) * rows[2] + h
                            tap = ((f * channels + c) * planes[0] + t) * rows[0] + r
                            row = offset(x, at * columns[2])
                            weights = offset(w, tap * columns[0])
                            for s in range(columns[0]):
                                k = j + rights[s]
                                if 0 <= k < columns[2]:
                                    total += row[k] * weights[s]
        y[unit] = total


def gather_back(gy: Arg, w: Arg, bias, gx: Arg, views: tuple[Window, ...]) -> list[Launch]:
    """gx [N, C, D, H, W]: what each element receives from gy through filters w."""
    return [Launch(receive, gy, w, bias or gy, gx, *sizes(gy, w, bias, gx, views), units=gx.size)]


def receive(gy, w, bias, gx, planes, rows, columns, filters, channels, own, biased, lo, hi):
    for unit in range(lo, hi):
        column = unit % columns[5]
        row = unit // columns[5] % rows[5]
        plane = unit // columns[5] // rows[5] % planes[5]
        place = unit // columns[5] // rows[5] // planes[5]
        gx[unit] = received(
            gy, w, bias, planes, rows, columns, filters, channels, own, biased, place // channels,
            place % channels, plane, row, column,
        )  # fmt: skip


def filter_gradients(gy: Arg, x: Arg, gw: Arg, groups: int, g: Geometry) -> list[Launch]:
    """gw [groups*K, C, T, R, S] from gy [N, groups*K, D', H', W'] and x [N, groups*C, D, H, W]."""
    counts = (gw.shape[0], gw.shape[1], gw.shape[0] // groups, x.shape[0])
    return [Launch(sum_products, gy, x, gw, *_places(x, g), *counts, units=gw.size)]


def sum_products(
    gy, x, gw, depths, planes, downs, rows, rights, columns, all_filters, channels, filters,
    images, lo, hi,
):  # fmt: skip
    for unit in range(lo, hi):
        s = unit % columns[0]
        r = unit // columns[0] % rows[0]
        t = unit // columns[0] // rows[0] % planes[0]
        c = unit // columns[0] // rows[0] // planes[0] % channels
        f = unit // columns[0] // rows[0] // planes[0] // channels
        total = 0.0
        for n in range(images):
            source = (n * (all_filters // filters) + f // filters) * channels + c
            for z in range(planes[3]):
                d = z * planes[1] + depths[t]
                if 0 <= d < planes[2]:
                    for i in range(rows[3]):
                        h = i * rows[1] + downs[r]
                        if 0 <= h < rows[2]:
                            at = ((n * all_filters + f) * planes[3] + z) * rows[3] + i
                            row_gy = offset(gy, at * columns[3])
                            row = offset(x, ((source * planes[2] + d) * rows[2] + h) * columns[2])
                            for j in range(columns[3]):
                                k = j * columns[1] + rights[s]
                                if 0 <= k < columns[2]:
                                    total += row_gy[j] * row[k]
        gw[unit] = total
