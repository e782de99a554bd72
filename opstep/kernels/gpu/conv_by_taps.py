"""Convolutions on CUDA: which kernel, which tiles, and how the terms of long sums are shared.

All is chosen from shapes and dtypes, so that the bits are the same everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from opstep.kernels.gpu.conv_lookup import (
    Taps,
    add_up,
    convolver,
    derive_one_by_one,
    filter_deriver,
    one_by_one,
)
from opstep.kernels.gpu.tile import Tile
from opstep.kernels.windows import Window
from opstep.runtime.device.launch import Arg, Grid, Scratch
from opstep.runtime.ir.op import Mismatch

_MULTIPROCESSORS = 128  # that work is cut for
_PARTS = 64  # of a sum, at most
_THREADS = 256
_FEW = 4  # filters of a group, for which a tile is not worth its while

_TILES = {
    4: (
        Tile(128, 128, 16, 8, 8),
        Tile(64, 128, 16, 8, 8),
        Tile(32, 128, 16, 8, 4),
        Tile(16, 128, 16, 4, 4),
    ),
    8: (Tile(64, 64, 16, 8, 4, 8), Tile(32, 32, 16, 4, 4, 8)),
}


class _Side(NamedTuple):
    """What a convolution looks at, and how its windows step over it."""

    image: Arg
    step: tuple[int, int]  # of windows from output to output
    first: tuple[int, int]  # where the first window begins: minus the padding
    sign: int  # -1: windows are looked at backwards
    stride: tuple[int, int]  # at which windows began, where they are looked at backwards


def forward(
    x: Arg, w: Arg, bias: Arg | None, y: Arg, rows: Window, columns: Window, groups: int
) -> list[Grid]:
    """Launches for y [N, K, H', W'] from images x [N, C, H, W], filters w [K, C/groups, R, S]."""
    if not y.size:
        return []
    side = _Side(x, (rows.stride, columns.stride), (-rows.before, -columns.before), 1, (1, 1))
    channels, taps = w.shape[1], w.shape[2] * w.shape[3]
    plane = x.shape[2] * x.shape[3]
    looked = _taps([c * plane for c in range(channels)], rows, columns)
    return _convolved(
        side,
        w,
        bias,
        y,
        groups,
        looked,
        None,
        channels * taps,
        channels * taps * (w.shape[0] // groups),
    )


def backward(
    gy: Arg, w: Arg, bias: Arg | None, gx: Arg, rows: Window, columns: Window, groups: int
) -> list[Grid]:
    """Launches for gx [N, C, H, W]: what each pixel receives from gy [N, K, H', W'] through w."""
    if not gx.size:
        return []
    side = _Side(gy, (1, 1), (rows.before, columns.before), -1, (rows.stride, columns.stride))
    filters, channels = w.shape[0] // groups, w.shape[1]
    taps = w.shape[2] * w.shape[3]
    plane = gy.shape[2] * gy.shape[3]
    looked = _taps([k * plane for k in range(filters)], rows, columns)
    places = tuple(k * channels * taps + t for k in range(filters) for t in range(taps))
    return _convolved(side, w, bias, gx, groups, looked, places, taps, filters * channels * taps)


def _taps(channels: Sequence[int], rows: Window, columns: Window) -> tuple[int, ...]:
    """Where each term of a sum looks; see `conv_lookup`."""
    down = [r * rows.dilation for r in range(rows.kernel)]
    right = [s * columns.dilation for s in range(columns.kernel)]
    if max(down[-1], right[-1]) >= Taps.MOST:
        raise Mismatch(f"on CUDA a filter spans at most {Taps.MOST} pixels", "dilation")
    return tuple(
        c << Taps.CHANNEL | r << Taps.DOWN | s for c in channels for r in down for s in right
    )


def _convolved(
    side: _Side, w: Arg, bias: Arg | None, out: Arg, groups: int, taps: tuple[int, ...],
    places: tuple[int, ...] | None, pitch: int, group_filters: int,
) -> list[Grid]:  # fmt: skip
    """`pitch`: from one row of filters to the next; `places`: of their terms, where they are not in
    order.
    """
    image = side.image
    height, width = image.shape[2:]
    group_rows = out.shape[1] // groups
    image_size = image.shape[1] * height * width
    plane = out.shape[2] * out.shape[3]
    pixels = out.shape[0] * plane
    tabled = places is not None
    looked = (taps, places or (0,), pitch, group_filters, group_rows)
    seen = (image_size, image_size // groups, height, width, out.shape[3], plane)
    stepped = (*side.step, *side.first, len(taps))
    if not out.dtype.is_float or group_rows <= _FEW or pixels >= 1 << 31:
        kernel = one_by_one(side.sign, *side.stride, tabled)
        return [
            Grid(
                *(kernel, w, image, bias or w, out, *looked, *seen, out.size, *stepped),
                *(groups, bias is not None),
                grid=-(-out.size // _THREADS),
                block=_THREADS,
            )
        ]
    tile = _tile(out, group_rows)
    down, across = -(-group_rows // tile.rows), -(-pixels // tile.columns)
    parts, part_steps = _shared(down * across * groups, len(taps), tile.steps)
    wide = 16 // out.stored.itemsize if out.stored.itemsize >= 4 else 4
    wide = min(wide, tile.run)
    kernel = convolver(tile, side.sign, *side.stride, tabled, wide if plane % wide == 0 else 1)
    whole = parts == 1
    target = out if whole else Scratch(out.dtype, parts * out.size)
    launches = [
        Grid(
            *(kernel, w, image, bias if bias and whole else w, target, *looked, *seen, pixels),
            *(out.shape[1] * plane, *stepped, down, across, groups, parts, part_steps, out.size),
            bias is not None and whole,
            grid=(across, down, groups * parts),
            block=tile.threads,
        )
    ]
    return launches if whole else [*launches, _added(target, bias, out, parts, plane)]


def filter_gradient(
    gy: Arg, x: Arg, gw: Arg, rows: Window, columns: Window, groups: int
) -> list[Grid]:
    """Launches for gw [K, C/groups, R, S] from gy [N, K, H', W'] and images x [N, C, H, W]."""
    if not gw.size:
        return []
    height, width = x.shape[2:]
    channels, group_rows = gw.shape[1], gw.shape[0] // groups
    image_size = x.shape[1] * height * width
    plane = gy.shape[2] * gy.shape[3]
    pixels = gy.shape[0] * plane
    taps = _taps([c * height * width for c in range(channels)], rows, columns)
    seen = (gy.shape[1] * plane, image_size, image_size // groups, height, width, gy.shape[3])
    stepped = (rows.stride, columns.stride, -rows.before, -columns.before)
    if not gw.dtype.is_float or pixels >= 1 << 31 or not pixels:
        return [
            Grid(
                *(derive_one_by_one, gy, x, gw, taps, group_rows, len(taps), *seen, plane),
                *(gy.shape[0], *stepped, gw.size),
                grid=-(-gw.size // _THREADS),
                block=_THREADS,
            )
        ]
    tile = _tile(gw, group_rows)
    down, across = -(-group_rows // tile.rows), -(-len(taps) // tile.columns)
    parts, part_steps = _shared(down * across * groups, pixels, tile.steps)
    target = gw if parts == 1 else Scratch(gw.dtype, parts * gw.size)
    launch = Grid(
        *(filter_deriver(tile), gy, x, target, taps, group_rows, len(taps), *seen, plane, pixels),
        *(*stepped, groups, parts, part_steps, gw.size),
        grid=(across, down, groups * parts),
        block=tile.threads,
    )
    return [launch] if parts == 1 else [launch, _added(target, None, gw, parts, 1)]


def _added(parts: Scratch | Arg, bias: Arg | None, out: Arg, count: int, plane: int) -> Grid:
    return Grid(
        *(
            add_up,
            parts,
            bias or parts,
            out,
            out.size,
            count,
            plane,
            out.shape[1],
            bias is not None,
        ),
        grid=-(-out.size // _THREADS),
        block=_THREADS,
    )


def _tile(out: Arg, rows: int) -> Tile:
    """The tallest that is not taller than needed by half."""
    tiles = _TILES[out.dtype.itemsize]
    for tile in tiles:
        if rows * 4 > tile.rows * 3 - 1 or tile is tiles[-1]:
            break
    return tile


def _shared(tiles: int, terms: int, steps: int) -> tuple[int, int]:
    """(in how many parts a sum is made, terms of one): where there are few tiles, more."""
    wanted = max(1, 2 * _MULTIPROCESSORS // tiles)
    parts = max(1, min(wanted, _PARTS, terms // (16 * steps)))
    part_steps = -(-terms // parts)
    part_steps = -(-part_steps // steps) * steps
    return -(-terms // part_steps), part_steps
