"""Tiles of attention on tensor cores: what a block keeps in shared memory, what it streams, and the
parts that the kernels forward and backward have in common.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np

from opstep.kernels.matmul.cuda_gemm_simt import matrix_offset
from opstep.kernels.matmul.cuda_gemm_tensor_cores import finisher
from opstep.kernels.matmul.cuda_tile import LINE, chunk_offset
from opstep.runtime.device.builtin import offset
from opstep.runtime.device.cuda.compiling.names import copy_async16, cuda, div32, hide_columns
from opstep.runtime.device.cuda.compiling.target import architecture
from opstep.runtime.device.launch import Arg
from opstep.runtime.device.source import Intrinsic

LOG2_E = 1.4426950408889634
_SHARED = {80: 163, 87: 163, 90: 227, 100: 227, 103: 227}  # KiB that a block may have


class FlashTile(NamedTuple):
    """A block keeps `held` rows of an operand, a warp 16 of them, while tiles of `streamed` rows of
    another follow each other through two places in shared memory. Rows have `features` elements,
    those of values `columns`: as many as are multiplied, zeros included.

    Four warps together (`warpgroups`, on architecture 9.0) multiply 64 of the rows.
    """

    held: int
    streamed: int
    features: int
    columns: int
    warpgroups: bool

    @property
    def threads(self) -> int:
        return 2 * self.held

    def room(self, rows: int, *lengths: int) -> int:
        """Halves of shared memory for operands with so many rows of these lengths."""
        return rows * LINE * sum(-(-length // LINE) for length in lengths)

    @property
    def stage(self) -> int:
        return self.room(self.streamed, self.features, self.columns)

    def scores(self) -> Intrinsic:
        """(value) -> a thread's part of a tile of scores."""
        return Intrinsic("fill", self.streamed // 2)

    def sums(self, columns: int) -> Intrinsic:
        """(value) -> a thread's part of the rows that are held."""
        return Intrinsic("fill", columns // 2)

    def similar(self, length: int, bf16: bool) -> Intrinsic:
        """(scores, held, streamed) -> scores plus the products of their rows of that length, after
        `settled`.
        """
        shape = (length // 16, 0, 0, int(bf16), self.held, self.streamed)
        if self.warpgroups:
            return Intrinsic("warpgroup_product", self.streamed, *shape)
        return Intrinsic("warp_product", 1, self.streamed // 8, *shape)

    def weighted(self, columns: int, bf16: bool) -> Intrinsic:
        """(sums, weights, streamed) -> sums plus rows of what is streamed, as they are weighted."""
        if self.warpgroups:
            return Intrinsic("warpgroup_weighted", columns, self.streamed // 16, int(bf16))
        shape = (columns // 8, self.streamed // 16, self.streamed, int(bf16))
        return Intrinsic("warp_weighted", *shape)

    def settled(self) -> Intrinsic:
        """scores -> scores: waits for them."""
        return Intrinsic("warpgroup_wait" if self.warpgroups else "unchanged")

    def arrived(self) -> Intrinsic:
        """(): waits for all copies; `cuda.syncthreads()` follows."""
        return Intrinsic("await_copies", 0, int(self.warpgroups))


def sums_pitch(length: int) -> int:
    """f32 from row to row of sums in shared memory; 8 more than a row, against conflicts."""
    return length + 8


@cache
def row_writer(length: int, threads: int, wide: int):
    """(y, shared memory as f32, row, column, sums, rows, columns, pitch): sums of all threads, of
    which this one's first has that place, to so many rows of y, `pitch` apart, `wide` elements at
    once.
    """
    own = sums_pitch(length)
    put_sums = Intrinsic("put_sums", 1, length // 8, own)
    finish = finisher(length, threads, own, wide)

    def write_rows(y, shared, row, column, sums, rows, columns, pitch):
        cuda.syncthreads()
        put_sums(offset(shared, row * own + column), sums)
        cuda.syncthreads()
        finish(y, 0, shared, y, rows, columns, pitch, False, 0, 0, ())

    return write_rows


def supported() -> bool:
    """Whether the architecture has what these kernels are made of."""
    return architecture() >= 80


def multiplied(longest: int, *operands: Arg) -> bool:
    """Whether tensor cores multiply these, whose rows have up to so many elements."""
    dtype = operands[0].stored
    alike = dtype.is_half and all(a.stored is dtype for a in operands)
    return supported() and alike and all(0 < a.shape[-1] <= longest for a in operands)


def in_warpgroups() -> bool:
    return architecture() == 90


def shared_limit() -> int:
    """Bytes of shared memory that a block may have."""
    return _SHARED.get(architecture(), 99) << 10


def padded(length: int, step: int) -> int:
    return -(-length // step) * step


@cache
def copier(extent: int, length: int, threads: int, wide: bool):
    """(shared, source, limit, terms, pitch, thread): starts this thread's part of copying `extent`
    rows of `terms` elements, `pitch` apart, to lines of shared memory, with zeros up to `length`
    and from the row `limit` on. `wide`: terms and pitch are multiples of 8.
    """
    lines = threads // 8  # at once
    units, blocks = -(-extent // lines), -(-length // LINE)
    even = extent % lines == 0
    assert lines % 8 == 0, "a thread keeps to its chunk of a line"

    def copy_chunks(shared, source, limit, terms, pitch, thread):
        line, at = thread // 8, thread % 8 * 8
        to = offset(shared, chunk_offset(line, thread % 8))
        for b in range(blocks):
            for u in range(units):
                row, term = line + u * lines, b * LINE + at
                if even or row < extent:
                    place = offset(to, (b * extent + u * lines) * LINE)
                    inside = row < limit and term < terms
                    copy_async16(place, source, row * pitch + term, inside)

    def copy_elements(shared, source, limit, terms, pitch, thread):
        line, at = thread // 8, thread % 8 * 8
        to = offset(shared, chunk_offset(line, thread % 8))
        for b in range(blocks):
            for u in range(units):
                for e in range(8):
                    row, term = line + u * lines, b * LINE + at + e
                    bits = np.uint16(0)
                    if row < limit and term < terms:
                        bits = source[row * pitch + term]
                    if even or row < extent:
                        to[(b * extent + u * lines) * LINE + e] = bits

    return copy_chunks if wide else copy_elements


@cache
def pair_copier(tile: FlashTile, extent: int, wide: tuple[bool, bool]):
    """(shared, a, b, row, end, sizes, thread): `copier`, of `extent` rows of a and then of b, from
    `row` on, with zeros from the row `end` on. Sizes are terms of both, and pitches.
    """
    copy_a = copier(extent, tile.features, tile.threads, wide[0])
    copy_b = copier(extent, tile.columns, tile.threads, wide[1])
    b_at = tile.room(extent, tile.features)

    def copy_pair(shared, a, b, row, end, sizes, thread):
        features, columns, a_pitch, b_pitch = sizes
        copy_a(shared, offset(a, row * a_pitch), end - row, features, a_pitch, thread)
        there = offset(shared, b_at)
        copy_b(there, offset(b, row * b_pitch), end - row, columns, b_pitch, thread)

    return copy_pair


def block_start(blocks, held, causal):
    """This block's problem, and the first row of q that it has."""
    batch = div32(cuda.blockIdx.x, blocks)
    block = cuda.blockIdx.x - batch * blocks
    if causal:  # those with most to do first
        block = blocks - 1 - block
    return batch, block * held


def start_of(batch, rank, shape, places):
    """Where the batch-th matrix begins: see `cuda_attention.places`."""
    return places[rank + 1] + matrix_offset(batch, rank, shape, places)


@cache
def operand_starts(warpgroups: bool):
    """thread -> where it begins to read rows that are held, those that are streamed, and the
    latter as what is weighted.
    """

    def of_warpgroup(thread):
        return thread // 128 * (LINE * LINE), 0, 0

    def of_lane(thread):
        warp, lane = thread // 32, thread % 32
        held = chunk_offset(warp * 16 + lane % 16, lane // 16)
        streamed = chunk_offset(lane // 16 * 8 + lane % 8, lane // 8 % 2)
        return held, streamed, chunk_offset(lane % 16, lane // 16)

    return of_warpgroup if warpgroups else of_lane


def sums_origin(thread):
    """thread -> (row, column) of its first number; the upper row is eight further down."""
    lane = thread % 32
    return thread // 32 * 16 + lane // 4, lane % 4 * 2


def mask_kind(mask: Arg | None) -> str:
    return "none" if mask is None else "bool" if mask.dtype.kind == "b" else "float"


@cache
def masked_score(kind: str) -> Callable:
    """(score, mask, at) -> the score, masked by that element."""

    def nothing(score, mask, at):
        return score

    def hide(score, mask, at):
        return score if mask[at] != 0 else score + -1e999

    def add(score, mask, at):
        return score + mask[at]

    return {"none": nothing, "bool": hide, "float": add}[kind]


def mask_form(mask: Arg | None, strides: tuple[int, ...], keys: int) -> str:
    """`mask_kind`, or that bools lie in pairs, which are read at once."""
    *across, along = strides
    if mask_kind(mask) == "bool" and along == 1 and not any(step % 2 for step in (keys, *across)):
        return "pairs of bools"
    return mask_kind(mask)


@cache
def tile_masking(form: str, streamed: int) -> tuple[Callable, Callable]:
    """Two functions for tiles of scores whose rows are queries, and whose columns are keys.

    (batch, rank, shape, strides, low, column, rows) -> place: where the mask has a thread's first
    scores, of its lower row and of its upper one, and the step from key to key. (scores, mask,
    place, j0, keys, free, low, column, causal) -> the scores of the tile from the key j0 on,
    masked; from the key `free` on, rows may see none.
    """
    masked = form != "none"
    apply_mask = Intrinsic("mask_scores", int(form != "float"), int(form == "pairs of bools"))

    def find_mask(batch, rank, shape, strides, low, column, rows):
        low_mask = high_mask = across = 0
        if masked:
            down, across = strides[rank], strides[rank + 1]
            low_mask = matrix_offset(batch, rank, shape, strides) + column * across
            high_mask = low_mask + min(low + 8, rows - 1) * down
            low_mask += min(low, rows - 1) * down
        return low_mask, high_mask, across

    def mask_tile(scores, mask, place, j0, keys, free, low, column, causal):
        if masked:
            low_mask, high_mask, across = place
            scores = apply_mask(
                scores, mask, low_mask + j0 * across, high_mask + j0 * across, across,
                keys - 1 - j0 - column, 1.4426950408889634,
            )  # fmt: skip
        if j0 + streamed > free:
            end = keys - j0 - column
            high_end = end
            if causal:
                high_end = min(end, low + 9 - j0 - column)
                end = min(end, low + 1 - j0 - column)
            scores = hide_columns(scores, 0, end, 0, high_end)
        return scores

    return find_mask, mask_tile
