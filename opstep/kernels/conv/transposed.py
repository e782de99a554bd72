"""Transposed convolutions on the CPU, as convolutions of turned filters."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from math import prod

from opstep.kernels.conv.correlation import Depth, Geometry, correlate
from opstep.kernels.conv.edges import mend_edges, only_bias, sizes
from opstep.kernels.conv.windows import LINE, Window
from opstep.kernels.matmul.matmul import product
from opstep.kernels.matmul.products import Side, transpose
from opstep.runtime.device.builtin import offset
from opstep.runtime.device.launch import Arg, Launch, Scratch
from opstep.runtime.ir.types import u8

_TOGETHER = 16  # channels that `turn_filters` takes at a time


def gather_back(gy: Arg, w: Arg, bias, gx: Arg, views: tuple[Window, ...], groups: int):
    """Launches for gx [N, C, H, W]: what each of its pixels receives from gy [N, K, H', W'] through
    filters w.

    Pixels h with equal h % stride receive through the same filter rows, so each such phase of gx is
    a convolution of gy with stride 1; one that receives through none is the bias alone. Where a
    filter covers the whole image, a row of results times all filters is that image, which takes a
    fourteenth of the time (256 filters of 7x7 pixels).
    """
    whole = w.shape[1:] == gx.shape[1:] and not any(v.before or v.after for v in views)
    if whole and gy.size and (bias is None or prod(w.shape[2:]) == 1):
        size = prod(w.shape[1:])
        results, filters = Side(gy, gy.shape[1], 1, (gy.shape[1],)), Side(w, size, 1, (0,))
        return product(results, filters, gx, gy.shape[:1], 1, size, gy.shape[1], bias)
    launches = []
    buffer = Scratch(gy.dtype, 0, per_lane=True)
    odd, phases = Scratch(u8, 0), 0
    filters, channels = w.shape[0] // groups, w.shape[1]
    met = [v.phases(n) for v, n in zip(views, gx.shape[2:], strict=True)]
    if any(len(m) < min(v.stride, n) for m, v, n in zip(met, views, gx.shape[2:], strict=True)):
        launches.append(only_bias(bias, gx))
    for picked, geometry in phases_of(views, w.shape[2:], gx.shape[2:]):
        turned = Scratch(w.dtype, groups * channels * filters * len(picked))
        launches.append(
            Launch(
                *(turn_filters, w, turned, odd, odd.size, picked, len(picked), filters),
                *(channels, prod(w.shape[2:])),
                units=groups * -(-channels // _TOGETHER),
                grain=max(1, 8192 // max(1, filters * len(picked) * _TOGETHER)),
            )
        )
        odd.size += groups * channels
        phases += 1
        launches.append(correlate(gy, turned, bias, gx, groups, geometry, buffer))
    if gx.dtype.is_float and gy.size:
        args = sizes(gy, w, bias, gx, views)
        pixels = gx.size // gx.shape[1]
        launches.append(
            Launch(
                *(mend_edges, gy, w, bias or gy, gx, odd, phases, *args, pixels),
                units=gx.shape[1],
            )
        )
    return launches


def phases_of(
    views: tuple[Window, ...], kernel: tuple[int, ...], sizes: tuple[int, ...]
) -> Iterator[tuple[tuple[int, ...], Geometry]]:
    """Of each phase that receives anything: the elements of a filter that it receives through, and
    where its pixels look in gy.
    """
    met = (v.phases(n).items() for v, n in zip(views, sizes, strict=True))
    for phase in itertools.product(*met):
        yield _taps([over for _, over in phase], kernel), _phase_geometry(views, phase, sizes)


def _taps(places, kernel) -> tuple[int, ...]:
    """The numbers of a filter's elements at these places of each axis."""
    taps = [0]
    for over, size in zip(places, kernel, strict=True):
        taps = [tap * size + place for tap in taps for place in over]
    return tuple(taps)


def _phase_geometry(views: tuple[Window, ...], phase, sizes: tuple[int, ...]) -> Geometry:
    """Where the pixels of a phase (of each axis: the first pixel, the places) look in gy."""
    none = 3 - len(views)
    axes = zip((LINE,) * none + views, ((0, [0]),) * none + phase, (1,) * none + sizes, strict=True)
    out, seen, first, step, whole = zip(
        *(
            (
                -(-(size - begin) // v.stride),
                tuple((begin + v.before - place * v.dilation) // v.stride for place in over),
                *(begin, v.stride, size),
            )
            for v, (begin, over), size in axes
        ),
        strict=True,
    )
    return Geometry(
        *(out[1:], (1, 1), seen[1], seen[2], whole[1:], step[1:], first[1:]),
        Depth(out[0], 1, seen[0], whole[0], step[0], first[0]),
    )


def turn_filters(w, turned, odd, own, picked, count, filters, channels, taps, lo, hi):
    """turned[g*C + c, k, t] = w[g*K + k, c, picked[t]]; odd[own + g*C + c]: whether one of these is
    no finite number. A unit is `_TOGETHER` channels: they are neighbours in each filter.
    """
    blocks = (channels + _TOGETHER - 1) // _TOGETHER
    for unit in range(lo, hi):
        group, first = unit // blocks, unit % blocks * _TOGETHER
        end = min(first + _TOGETHER, channels)
        flags = offset(odd, own + group * channels)
        if taps == 1:
            source = offset(w, group * filters * channels + first)
            to = offset(turned, (group * channels + first) * filters)
            transpose(source, channels, to, filters, filters, end - first)
        for k in range(filters if taps > 1 else 0):
            for c in range(first, end):
                source = offset(w, ((group * filters + k) * channels + c) * taps)
                to = offset(turned, ((group * channels + c) * filters + k) * count)
                for t in range(count):
                    to[t] = source[picked[t]]
        for c in range(first, end):
            bad = 0
            row = offset(turned, (group * channels + c) * filters * count)
            for i in range(filters * count):
                bad |= 0 if math.isfinite(row[i]) else 1
            flags[c] = bad
