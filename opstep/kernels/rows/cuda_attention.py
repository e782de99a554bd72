"""Scaled dot-product attention on CUDA: which kernel, and the one that runs everywhere, a warp for
each row of q and a tile of keys at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import prod

from opstep.kernels.math.fastmath import exp
from opstep.kernels.matmul.cuda_gemm_simt import matrix_offset
from opstep.kernels.rows import cuda_attention_halves as halves
from opstep.kernels.rows import cuda_attention_registers as registers
from opstep.kernels.rows.cuda_attention_tiles import mask_kind, masked_score, start_of
from opstep.kernels.rules.axes import strides_of
from opstep.runtime.device.builtin import offset
from opstep.runtime.device.cuda.compiling.names import cuda, div32, real
from opstep.runtime.device.launch import Arg, Grid, Seen

ROWS = 8  # of q, which share what a block reads of k
KEYS = 32  # of a tile: one for each thread of a row
FEATURES = 32  # of a tile
PITCH = FEATURES + 1  # of keys in shared memory
KEY_ROOM, QUERY_ROOM, SCORE_ROOM = KEYS * PITCH, ROWS * FEATURES, ROWS * KEYS


def places(a: Arg, y: Arg, each: int) -> tuple[int, ...]:
    """Where matrices of q, k, v or y begin: elements along each axis of problems, as `layout` has
    them, then from row to row, then the first. `each`: heads of k that heads of y share, or 0.
    """
    start, strides = (a.start, a.strides) if isinstance(a, Seen) else (0, strides_of(a.shape))
    *steps, pitch, _ = (0 if n == 1 else step for step, n in zip(strides, a.shape, strict=True))
    steps = [0] * (len(y.shape) - len(a.shape)) + steps
    if each:
        group = y.shape[-3] // each
        steps[-1:] = (
            [steps[-1] * group, steps[-1]] if a.shape[-3] == y.shape[-3] else [steps[-1], 0]
        )
    return (*steps, pitch, start)


def attend(
    q: Arg, k: Arg, v: Arg, mask: Arg | None, y: Arg, shape, strides, causal: bool, scale: float
) -> Grid:
    if tile := halves.tile_for(q, k, v):
        return halves.attend(tile, q, k, v, mask, y, shape, strides, causal, scale)
    if block := registers.block_for(q, v):
        return registers.attend(block, q, k, v, mask, y, shape, strides, causal, scale)
    rows, features, keys, columns = *q.shape[-2:], *v.shape[-2:]
    kind = mask_kind(mask)
    blocks = -(-rows // ROWS)
    return Grid(
        *(attending(kind, -(-columns // KEYS)), q, k, v, mask or q, y, shape, *strides),
        *(len(shape), rows, keys, features, columns, blocks, scale, int(causal)),
        grid=prod(shape) * blocks,
        block=ROWS * KEYS,
    )


@cache
def attending(kind: str, held: int) -> Callable:
    """The kernel for `held` columns of the result a thread."""
    with_mask = masked_score(kind)

    def attend(
        q, k, v, mask, y, shape, q_places, k_places, v_places, y_places, mask_strides, rank, rows,
        keys, features, columns, blocks, scale, causal,
    ):  # fmt: skip
        some_keys = cuda.shared.array(KEY_ROOM, real)
        some_queries = cuda.shared.array(QUERY_ROOM, real)
        scores = cuda.shared.array(SCORE_ROOM, real)
        sums = cuda.local.array(held, real)
        mine = cuda.threadIdx.x // KEYS
        column = cuda.threadIdx.x - mine * KEYS
        batch = div32(cuda.blockIdx.x, blocks)
        i = (cuda.blockIdx.x - batch * blocks) * ROWS + mine
        row = min(i, rows - 1)
        query = offset(q, start_of(batch, rank, shape, q_places) + row * q_places[rank])
        own = offset(k, start_of(batch, rank, shape, k_places))
        values = offset(v, start_of(batch, rank, shape, v_places))
        key_pitch, value_pitch = k_places[rank], v_places[rank]
        masked = matrix_offset(batch, rank, shape, mask_strides) + row * mask_strides[rank]
        for c in range(held):
            sums[c] = 0.0
        top = -1e999
        total = 0.0
        last = min(rows, i - mine + ROWS)
        visible = min(keys, last) if causal else keys
        for j0 in range(0, visible, KEYS):
            score = 0.0
            for first in range(0, features, FEATURES):
                inside = first + column < features
                some_queries[mine * FEATURES + column] = query[first + column] if inside else 0.0
                for j in range(mine, KEYS, ROWS):
                    key = 0.0
                    if inside and j0 + j < keys:
                        key = own[(j0 + j) * key_pitch + first + column]
                    some_keys[j * PITCH + column] = key
                cuda.syncthreads()
                for f in range(FEATURES):
                    score += some_queries[mine * FEATURES + f] * some_keys[column * PITCH + f]
                cuda.syncthreads()
            j = j0 + column
            score *= scale
            if j < keys:
                score = with_mask(score, mask, masked + j * mask_strides[rank + 1])
            if j >= keys or (causal and j > row):
                score = -1e999
            scores[mine * KEYS + column] = score
            cuda.syncthreads()
            old = top
            for c in range(KEYS):
                other = scores[mine * KEYS + c]
                top = other if other > top or other != other else top
            shift = 0.0 if top == -1e999 else top
            factor = 1.0 if top == old else exp(old - shift)
            total *= factor
            for c in range(held):
                sums[c] *= factor
            cuda.syncthreads()
            scores[mine * KEYS + column] = exp(score - shift)
            cuda.syncthreads()
            for j in range(min(KEYS, keys - j0)):
                weight = scores[mine * KEYS + j]
                total += weight
                for c in range(held):
                    e = c * KEYS + column
                    if e < columns:
                        sums[c] += weight * values[(j0 + j) * value_pitch + e]
            cuda.syncthreads()
        share = 0.0 if total == 0.0 else 1.0 / total
        out = offset(y, start_of(batch, rank, shape, y_places) + row * y_places[rank])
        for c in range(held):
            e = c * KEYS + column
            if i < rows and e < columns:
                out[e] = sums[c] * share

    attend.__name__ = f"attend_{kind}"
    return attend
