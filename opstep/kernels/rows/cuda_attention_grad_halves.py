"""The gradients of attention of halves on tensor cores, for architectures from 8.0 on.

Two kernels, without atomics. One has a tile of q and goes over k and v twice: for the logarithm of
the sum of each row's exponentials and the mean of gy·v^T, weighted, then for the gradient of q. The
other has a tile of k and v and goes over q and gy, with scores turned, for theirs. On an H200, 183
TFLOP/s of bf16 with 512 rows and 64 features, where PyTorch's flash attention has 142.
"""

from __future__ import annotations

import math
from functools import cache
from math import prod

import numpy as np

from opstep.kernels.matmul.cuda_gemm_simt import matrix_offset
from opstep.kernels.rows.cuda_attention_tiles import (
    LOG2_E,
    FlashTile,
    block_start,
    in_warpgroups,
    mask_form,
    mask_kind,
    multiplied,
    operand_starts,
    padded,
    pair_copier,
    row_writer,
    shared_limit,
    sums_origin,
    sums_pitch,
    tile_masking,
)
from opstep.runtime.device.builtin import offset
from opstep.runtime.device.cuda.compiling.names import (
    as_f32,
    commit_copies,
    copy_async4,
    cuda,
    differences_by_columns,
    differences_by_rows,
    div32,
    hide_columns,
    pointer_to,
    powers_by_columns,
    powers_by_rows,
    row_products,
    scale_rows,
    soften,
    stored_bits,
    sum_of_four,
)
from opstep.runtime.device.launch import Arg, Grid, Scratch
from opstep.runtime.device.source import Intrinsic
from opstep.runtime.ir.types import f32

_BITS = np.dtype(np.uint16)
_LONGEST = 128  # features or columns: a thread has sums of both


def tile_for(q: Arg, k: Arg, v: Arg, gy: Arg) -> FlashTile | None:
    """The tile for these operands, where they go through tensor cores."""
    if not multiplied(_LONGEST, q, k, v, gy):
        return None
    groups = in_warpgroups()
    step = 64 if groups else 16
    lengths = padded(q.shape[-1], step), padded(v.shape[-1], step)
    tile = FlashTile(64, 64, *lengths, groups)
    return tile if shared_bytes(tile) <= shared_limit() else None


def shared_bytes(tile: FlashTile) -> int:
    """For operands and what is known of rows, at last for sums."""
    operands = tile.room(tile.held, tile.features, tile.columns) + 2 * tile.stage
    sums = sums_pitch(max(tile.features, tile.columns))
    return max(2 * operands + 16 * tile.streamed, 4 * tile.held * sums)


def gradients(
    tile: FlashTile, q: Arg, k: Arg, v: Arg, gy: Arg, mask: Arg | None, gq: Arg, gk: Arg, gv: Arg,
    shape, mask_strides, causal: bool, scale: float,
) -> list[Grid]:  # fmt: skip
    rows, features, keys, columns = *q.shape[-2:], *v.shape[-2:]
    problems = prod(shape)
    heads = prod(k.shape[:-2])
    group = problems // max(heads, 1)
    logs, inner = (Scratch(f32, max(1, problems * rows)) for _ in range(2))
    wide, bf16 = (features % 8 == 0, columns % 8 == 0), q.stored.name == "bf16"
    form = mask_form(mask, mask_strides, keys)
    narrow = [4 if length % 4 == 0 else 1 for length in (features, columns)]
    sizes = (group, rows, keys, features, columns)
    numbers = (scale, scale * LOG2_E, int(causal))
    layout = (shape, mask_strides, len(shape), *sizes)
    launches = []
    for made, by, count, kernel in (
        ((gq,), rows, problems, by_queries(tile, form, wide, bf16, narrow[0])),
        ((gk, gv), keys, heads, by_keys(tile, mask_kind(mask), wide, bf16, *narrow)),
    ):
        blocks = -(-by // tile.held)
        launches.append(
            Grid(
                *(kernel, q, k, v, gy, mask or q, logs, inner, *made, *layout, blocks, *numbers),
                grid=blocks * count,
                block=tile.threads,
                shared=shared_bytes(tile),
            )
        )
    return launches


@cache
def by_queries(tile: FlashTile, form: str, wide: tuple[bool, bool], bf16: bool, q_wide: int):
    """`wide`, `q_wide`: as of `cuda_attention_halves.attending`."""
    held, streamed, stage = tile.held, tile.streamed, tile.stage
    above_at = tile.room(held, tile.features)
    streams_at = above_at + tile.room(held, tile.columns)
    values_at = tile.room(streamed, tile.features)
    copy_held, copy_tile = (pair_copier(tile, extent, wide) for extent in (held, streamed))
    no_scores, no_sums = tile.scores(), tile.sums(tile.features)
    similar, by_value = tile.similar(tile.features, bf16), tile.similar(tile.columns, bf16)
    weighted, arrived = tile.weighted(tile.features, bf16), tile.arrived()
    settled = tile.settled()
    starts = operand_starts(tile.warpgroups)
    write_rows = row_writer(tile.features, tile.threads, q_wide)
    find_mask, mask_tile = tile_masking(form, streamed)

    def attention_grad_queries(
        q, k, v, gy, mask, logs, inner, gq, shape, mask_strides, rank, group, rows, keys, features,
        columns, blocks, scale, factor, causal,
    ):  # fmt: skip
        """Also `logs`, of sums of powers of 2, and `inner`, weighted means of gy·v^T, by rows."""
        shared = pointer_to(cuda.shared.array(0, _BITS))
        sizes = features, columns, features, columns
        thread = cuda.threadIdx.x
        batch, row0 = block_start(blocks, held, causal)
        first = batch * rows
        own = stored_bits(offset(k, div32(batch, group) * keys * features))
        values = stored_bits(offset(v, div32(batch, group) * keys * columns))
        queries = stored_bits(offset(q, first * features))
        above = stored_bits(offset(gy, first * columns))
        visible = min(keys, row0 + held) if causal else keys
        free = min(keys, row0 + 1) if causal else keys  # that all rows see
        tiles = div32(visible + streamed - 1, streamed)
        copy_held(shared, queries, above, row0, rows, sizes, thread)
        here = offset(shared, streams_at)
        copy_tile(here, own, values, 0, keys, sizes, thread)
        commit_copies()
        held_start, streamed_start, weighted_start = starts(thread)
        low, column = sums_origin(thread)
        low += row0
        place = find_mask(batch, rank, shape, mask_strides, low, column, rows)
        sums = no_sums(0.0)
        low_log = high_log = -1e999  # the largest scores, as long as they are looked for
        low_inner = high_inner = 0.0
        low_total = high_total = 0.0
        at = 0
        for step in range(2 * tiles):
            arrived()
            cuda.syncthreads()
            if step == tiles:
                low_total, high_total = sum_of_four(low_total), sum_of_four(high_total)
                low_inner, high_inner = sum_of_four(low_inner), sum_of_four(high_inner)
                low_inner = 0.0 if low_total == 0.0 else low_inner / low_total
                high_inner = 0.0 if high_total == 0.0 else high_inner / high_total
                low_log = log_of_sum(low_log, low_total)
                high_log = log_of_sum(high_log, high_total)
            j0 = (step - tiles if step >= tiles else step) * streamed
            here = offset(shared, streams_at + at)
            at = stage - at
            if step + 1 < 2 * tiles:
                ahead = 0 if step + 1 == tiles else j0 + streamed
                there = offset(shared, streams_at + at)
                copy_tile(there, own, values, ahead, keys, sizes, thread)
            commit_copies()
            scores, numbers = no_scores(0.0), no_scores(0.0)
            scores = similar(scores, offset(shared, held_start), offset(here, streamed_start))
            numbers = by_value(
                numbers,
                offset(shared, above_at + held_start),
                offset(here, values_at + streamed_start),
            )
            scores, numbers = settled(scores), settled(numbers)
            scores = scale_rows(scores, factor, factor)
            scores = mask_tile(scores, mask, place, j0, keys, free, low, column, causal)
            if step < tiles:
                scores, low_log, high_log, low_factor, high_factor, low_sum, high_sum = soften(
                    scores, low_log, high_log
                )
                low_total = low_total * low_factor + low_sum
                high_total = high_total * high_factor + high_sum
                low_sum, high_sum = row_products(scores, numbers)
                low_inner = low_inner * low_factor + low_sum
                high_inner = high_inner * high_factor + high_sum
            else:
                scores = powers_by_rows(scores, low_log, high_log)
                scores = differences_by_rows(scores, numbers, low_inner, high_inner)
                sums = weighted(sums, scores, offset(here, weighted_start))
        if column == 0 and tiles > 0:
            if low < rows:
                logs[first + low] = low_log
                inner[first + low] = low_inner
            if low + 8 < rows:
                logs[first + low + 8] = high_log
                inner[first + low + 8] = high_inner
        sums = scale_rows(sums, scale, scale)
        arrived()
        out = offset(gq, (first + row0) * features)
        some = min(held, rows - row0)
        write_rows(out, as_f32(shared), low - row0, column, sums, some, features, features)

    attention_grad_queries.__name__ = f"attention_grad_queries_{form.replace(' ', '_')}"
    return attention_grad_queries


def log_of_sum(top, total):
    """Infinity for a row that sees nothing, so that its weights are 0."""
    if total == 0.0:
        return 1e999
    return top + math.log2(total)


@cache
def by_keys(
    tile: FlashTile, kind: str, wide: tuple[bool, bool], bf16: bool, k_wide: int, v_wide: int
):
    held, streamed, stage = tile.held, tile.streamed, tile.stage
    held_values_at = tile.room(held, tile.features)
    streams_at = held_values_at + tile.room(held, tile.columns)
    above_at = tile.room(streamed, tile.features)
    known_at = (streams_at + 2 * stage) // 2  # as f32: `logs` and `inner` of two tiles
    copy_held, copy_tile = (pair_copier(tile, extent, wide) for extent in (held, streamed))
    no_scores = tile.scores()
    no_keys, no_values = tile.sums(tile.features), tile.sums(tile.columns)
    similar, by_value = tile.similar(tile.features, bf16), tile.similar(tile.columns, bf16)
    for_keys, for_values = tile.weighted(tile.features, bf16), tile.weighted(tile.columns, bf16)
    settled, arrived, starts = tile.settled(), tile.arrived(), operand_starts(tile.warpgroups)
    write_keys = row_writer(tile.features, tile.threads, k_wide)
    write_values = row_writer(tile.columns, tile.threads, v_wide)
    masked, apply_mask = kind != "none", Intrinsic("mask_scores", int(kind == "bool"))

    def copy_known(known, logs, inner, first, limit, thread):
        if thread < streamed:
            inside = thread < limit
            copy_async4(offset(known, thread), logs, first + thread, inside)
            copy_async4(offset(known, streamed + thread), inner, first + thread, inside)

    def attention_grad_keys(
        q, k, v, gy, mask, logs, inner, gk, gv, shape, mask_strides, rank, group, rows, keys,
        features, columns, blocks, scale, factor, causal,
    ):  # fmt: skip
        """A block has keys, whose scores are rows here: columns are queries."""
        shared = pointer_to(cuda.shared.array(0, _BITS))
        sizes = features, columns, features, columns
        known = offset(as_f32(shared), known_at)
        thread = cuda.threadIdx.x
        unit = div32(cuda.blockIdx.x, blocks)
        key0 = (cuda.blockIdx.x - unit * blocks) * held
        first = unit * keys
        own = stored_bits(offset(k, first * features))
        values = stored_bits(offset(v, first * columns))
        copy_held(shared, own, values, key0, keys, sizes, thread)
        skipped = key0 - key0 % streamed if causal else 0  # queries that see none of the keys
        tiles = div32(max(0, rows - skipped) + streamed - 1, streamed)
        queries, above = stored_bits(q), stored_bits(gy)
        if tiles > 0:
            here = offset(shared, streams_at)
            i, end = unit * group * rows + skipped, (unit * group + 1) * rows
            copy_tile(here, queries, above, i, end, sizes, thread)
            copy_known(known, logs, inner, i, end - i, thread)
        commit_copies()
        held_start, streamed_start, weighted_start = starts(thread)
        low, column = sums_origin(thread)
        low += key0
        down = across = masks = 0
        if masked:
            down, across = mask_strides[rank], mask_strides[rank + 1]
        key_sums, value_sums = no_keys(0.0), no_values(0.0)
        at = 0
        known_step = 0
        turn, i0 = 0, skipped
        for _ in range(group * tiles):
            arrived()
            cuda.syncthreads()
            here, of_rows = offset(shared, streams_at + at), offset(known, known_step)
            at = stage - at
            known_step = 2 * streamed - known_step
            batch = unit * group + turn
            next_turn, next_i0 = turn, i0 + streamed
            if next_i0 >= rows:
                next_turn, next_i0 = turn + 1, skipped
            if next_turn < group:
                end = (unit * group + next_turn + 1) * rows
                i = end - rows + next_i0
                there = offset(shared, streams_at + at)
                copy_tile(there, queries, above, i, end, sizes, thread)
                copy_known(offset(known, known_step), logs, inner, i, end - i, thread)
            commit_copies()
            scores, numbers = no_scores(0.0), no_scores(0.0)
            scores = similar(scores, offset(shared, held_start), offset(here, streamed_start))
            numbers = by_value(
                numbers,
                offset(shared, held_values_at + held_start),
                offset(here, above_at + streamed_start),
            )
            scores, numbers = settled(scores), settled(numbers)
            scores = scale_rows(scores, factor, factor)
            if masked:
                masks = matrix_offset(batch, rank, shape, mask_strides) + (i0 + column) * down
                scores = apply_mask(
                    scores, mask, masks + min(low, keys - 1) * across,
                    masks + min(low + 8, keys - 1) * across, down, rows - 1 - i0 - column,
                    1.4426950408889634,
                )  # fmt: skip
            if i0 + streamed > rows or (causal and i0 < key0 + held):
                begin = low - i0 - column if causal else 0
                end = rows - i0 - column
                scores = hide_columns(scores, begin, end, begin + 8 if causal else 0, end)
            scores = powers_by_columns(scores, offset(of_rows, column))
            value_sums = for_values(value_sums, scores, offset(here, above_at + weighted_start))
            scores = differences_by_columns(scores, numbers, offset(of_rows, streamed + column))
            key_sums = for_keys(key_sums, scores, offset(here, weighted_start))
            turn, i0 = next_turn, next_i0
        key_sums = scale_rows(key_sums, scale, scale)
        some, whole = min(held, keys - key0), as_f32(shared)
        arrived()
        out = offset(gk, (first + key0) * features)
        write_keys(out, whole, low - key0, column, key_sums, some, features, features)
        out = offset(gv, (first + key0) * columns)
        write_values(out, whole, low - key0, column, value_sums, some, columns, columns)

    attention_grad_keys.__name__ = f"attention_grad_keys_{kind}"
    return attention_grad_keys
