"""Attention in f32 by fused multiply-adds: a block of threads multiplies tiles of q and k, and of
weights and v, out of shared memory, each thread a part in registers.
"""

from __future__ import annotations

from functools import cache
from math import prod
from typing import NamedTuple

from opstep.kernels.math.fastmath import exp
from opstep.kernels.matmul.cuda_gemm_simt import matrix_offset
from opstep.kernels.matmul.cuda_tile import Tile, fetcher, putter, thread_origin
from opstep.kernels.rows.cuda_attention_tiles import (
    block_start,
    mask_kind,
    masked_score,
    padded,
    start_of,
    supported,
)
from opstep.runtime.device.builtin import offset
from opstep.runtime.device.cuda.compiling.names import (
    cuda,
    max_nan,
    pointer_to,
    real,
    spread,
)
from opstep.runtime.device.launch import Arg, Grid
from opstep.runtime.device.source import Intrinsic

KEYS = 64  # of a tile
STEPS = 32  # features of a tile
THREADS = 128
_FEWEST = 8  # rows of q that are worth a tile
_SHARED = 99 << 10  # bytes that a block may have on any architecture


class Block(NamedTuple):
    """A block keeps `rows` of q; rows have so many features and columns, zeros included. Of v it
    has `streamed` keys at a time.
    """

    rows: int
    streamed: int
    features: int
    columns: int

    @property
    def scores(self) -> Tile:
        return Tile(self.rows, KEYS, STEPS, self.rows // 8, 4)

    @property
    def result(self) -> Tile:
        thread_columns = self.rows * self.columns // (8 * THREADS)
        return Tile(self.rows, self.columns, self.streamed, 8, thread_columns)

    @property
    def weights_at(self) -> int:
        """The place of k, and then of weights, as a number of elements of shared memory."""
        return self.features * self.scores.left_pitch

    @property
    def values_at(self) -> int:
        weights = max(STEPS * self.scores.right_pitch, KEYS * self.scores.left_pitch)
        return self.weights_at + weights

    @property
    def tops_at(self) -> int:
        """The place in which threads exchange numbers of rows, and then factors."""
        return self.values_at + self.streamed * self.result.right_pitch

    @property
    def shared(self) -> int:
        return 4 * (self.tops_at + THREADS + self.rows)


def block_for(q: Arg, v: Arg) -> Block | None:
    """The block for these operands, where they go by these tiles."""
    rows, features, columns = q.shape[-2], q.shape[-1], v.shape[-1]
    if not supported() or q.dtype.name != "f32" or rows < _FEWEST or not features or not columns:
        return None
    features = padded(features, STEPS)
    blocks = [Block(64, KEYS, features, padded(columns, 64))] if columns <= 128 else []
    blocks += [Block(32, 32, features, padded(columns, 128))] if columns <= 256 else []
    return next((block for block in blocks if block.shared <= _SHARED), None)


def attend(
    block: Block, q: Arg, k: Arg, v: Arg, mask: Arg | None, y: Arg, shape, strides, causal: bool,
    scale: float,
) -> Grid:  # fmt: skip
    rows, features, keys, columns = *q.shape[-2:], *v.shape[-2:]
    blocks = -(-rows // block.rows)
    wide = 4 if features % 4 == 0 else 1, 4 if columns % 4 == 0 else 1
    return Grid(
        *(attending(mask_kind(mask), block, *wide), q, k, v, mask or q, y),
        *(shape, *strides, len(shape), rows, keys, features, columns, blocks, scale, int(causal)),
        grid=prod(shape) * blocks,
        block=THREADS,
        shared=block.shared,
        blocks=3 if block.columns == 64 else 2,
    )


@cache
def attending(kind: str, block: Block, q_wide: int, v_wide: int):
    """`wide`: elements that are read at once."""
    held_rows, streamed, tile, result = block.rows, block.streamed, block.scores, block.result
    weights_at, values_at, tops_at = block.weights_at, block.values_at, block.tops_at
    row_pitch, key_step = tile.left_pitch, tile.right_pitch
    fetch_queries = fetcher(held_rows, STEPS, THREADS, True, q_wide)
    put_queries = putter(held_rows, STEPS, THREADS, True, q_wide, row_pitch)
    fetch = fetcher(KEYS, STEPS, THREADS, True, q_wide)
    put = putter(KEYS, STEPS, THREADS, True, q_wide, key_step)
    fetch_values = fetcher(block.columns, streamed, THREADS, False, v_wide)
    put_values = putter(block.columns, streamed, THREADS, False, v_wide, result.right_pitch)
    held, values_held = KEYS * STEPS // THREADS, block.columns * streamed // THREADS
    similar, weighted = tile.product(), result.product()
    score_origin, origin = thread_origin(tile), thread_origin(result)
    score_runs, count = tile.thread_rows // 4, 8 * result.thread_columns
    score_count = 16 * score_runs
    no_scores, no_sums = Intrinsic("fill", score_count), Intrinsic("fill", count)
    gather, gather4 = Intrinsic("gather", count), Intrinsic("gather", 4)
    store, store4 = Intrinsic("store", v_wide), Intrinsic("store", 4)
    gather_wide = Intrinsic("gather", v_wide)
    thread_columns, row_gap, column_gap = result.thread_columns, result.row_gap, result.column_gap
    teams = THREADS // held_rows  # that share a row's keys
    share = KEYS // teams
    with_mask = masked_score(kind)

    def attend_tiles(
        q, k, v, mask, y, shape, q_places, k_places, v_places, y_places, mask_strides, rank, rows,
        keys, features, columns, blocks, scale, causal,
    ):  # fmt: skip
        shared = pointer_to(cuda.shared.array(0, real))
        passed = pointer_to(cuda.local.array(held, real))
        values_passed = pointer_to(cuda.local.array(values_held, real))
        parts = pointer_to(cuda.local.array(score_count, real))
        mine = pointer_to(cuda.local.array(count, real))
        weights, tile_values = offset(shared, weights_at), offset(shared, values_at)
        tops, factors = offset(shared, tops_at), offset(shared, tops_at + THREADS)
        thread = cuda.threadIdx.x
        batch, row0 = block_start(blocks, held_rows, causal)
        queries = offset(q, start_of(batch, rank, shape, q_places))
        own = offset(k, start_of(batch, rank, shape, k_places))
        values = offset(v, start_of(batch, rank, shape, v_places))
        key_pitch, value_pitch, y_pitch = k_places[rank], v_places[rank], y_places[rank]
        score_row, score_column = score_origin(thread)
        first_row, first_column = origin(thread)
        line, first_key = thread % held_rows, thread // held_rows * share  # in the softmax
        row = row0 + line
        masked = matrix_offset(batch, rank, shape, mask_strides)
        masked += min(row, rows - 1) * mask_strides[rank]
        across = mask_strides[rank + 1]
        for f in range(0, features, STEPS):
            fetch_queries(passed, queries, row0, rows, f, features, q_places[rank], thread)
            put_queries(offset(shared, f * row_pitch), passed, thread)
        sums = no_sums(0.0)
        top = -1e999
        total = 0.0
        visible = min(keys, row0 + held_rows) if causal else keys
        for j0 in range(0, visible, KEYS):
            fetch_values(values_passed, values, 0, columns, j0, keys, value_pitch, thread)
            put_values(tile_values, values_passed, thread)
            scores = no_scores(0.0)
            fetch(passed, own, j0, keys, 0, features, key_pitch, thread)
            for f in range(0, features, STEPS):
                put(weights, passed, thread)
                cuda.syncthreads()
                if f + STEPS < features:
                    fetch(passed, own, j0, keys, f + STEPS, features, key_pitch, thread)
                left = offset(shared, f * row_pitch + score_row)
                scores = similar(scores, left, offset(weights, score_column))
                cuda.syncthreads()
            spread(parts, scores)
            for j in range(4):  # a column of the thread's part, in two runs
                for r in range(score_runs):
                    held4 = pointer_to(cuda.local.array(4, real))
                    for i in range(4):
                        held4[i] = parts[(r * 4 + i) * 4 + j]
                    at = (score_column + j) * row_pitch + score_row + r * 16
                    store4(weights, at, gather4(held4))
            cuda.syncthreads()
            some = min(share, keys - j0 - first_key)
            if causal:
                some = min(some, row + 1 - j0 - first_key)
            before = top
            for j in range(share):
                at = (first_key + j) * row_pitch + line
                score = -1e999
                if j < some:
                    score = with_mask(
                        weights[at] * scale, mask, masked + (j0 + first_key + j) * across
                    )
                weights[at] = score
                top = max_nan(top, score)
            tops[thread] = top
            cuda.syncthreads()
            for team in range(teams):
                top = max_nan(top, tops[team * held_rows + line])
            shift = 0.0 if top == -1e999 else top
            factor = exp(before - shift)
            total *= factor
            for j in range(share):
                at = (first_key + j) * row_pitch + line
                weight = exp(weights[at] - shift)
                weights[at] = weight
                total += weight
            if first_key == 0:
                factors[line] = factor
            cuda.syncthreads()
            spread(mine, sums)
            for i in range(8):
                times = factors[first_row + i // 4 * row_gap + i % 4]
                for j in range(thread_columns):
                    mine[i * thread_columns + j] *= times
            sums = gather(mine)
            sums = weighted(sums, offset(weights, first_row), offset(tile_values, first_column))
            cuda.syncthreads()
            for j in range(streamed, KEYS, streamed):
                fetch_values(values_passed, values, 0, columns, j0 + j, keys, value_pitch, thread)
                put_values(tile_values, values_passed, thread)
                cuda.syncthreads()
                left = offset(weights, j * row_pitch + first_row)
                sums = weighted(sums, left, offset(tile_values, first_column))
                cuda.syncthreads()
        tops[thread] = total
        cuda.syncthreads()
        if first_key == 0:
            for team in range(1, teams):
                total += tops[team * held_rows + line]
            factors[line] = 0.0 if total == 0.0 else 1.0 / total
        cuda.syncthreads()
        spread(mine, sums)
        out = offset(y, start_of(batch, rank, shape, y_places))
        for i in range(8):
            at = first_row + i // 4 * row_gap + i % 4
            if row0 + at < rows:
                for j in range(0, thread_columns, v_wide):
                    column = first_column + j // 4 * column_gap + j % 4
                    if column < columns:
                        run = offset(mine, i * thread_columns + j)
                        for e in range(v_wide):
                            run[e] *= factors[at]
                        if v_wide > 1:
                            store(out, (row0 + at) * y_pitch + column, gather_wide(run))
                        else:
                            out[(row0 + at) * y_pitch + column] = run[0]

    attend_tiles.__name__ = f"attend_tiles_{kind}"
    return attend_tiles
