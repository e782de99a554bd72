"""The gradients of attention on CUDA: which kernels, and those that run everywhere, which are
matrix products with all weights in memory.
"""

from __future__ import annotations

from functools import cache
from math import prod

from opstep.kernels.math.fastmath import exp
from opstep.kernels.matmul.cuda_gemm import product
from opstep.kernels.matmul.cuda_gemm_simt import matrix_offset
from opstep.kernels.matmul.products import Side
from opstep.kernels.rows import cuda_attention_grad_halves as halves
from opstep.kernels.rows.cuda_attention_tiles import mask_kind, masked_score, multiplied
from opstep.runtime.device.builtin import offset
from opstep.runtime.device.cuda.compiling.names import cuda, div32, shuffle_xor
from opstep.runtime.device.launch import Arg, Grid, Scratch

_ROWS = 4  # of a block, a warp each


def gradients(
    q: Arg, k: Arg, v: Arg, gy: Arg, mask: Arg | None, gq: Arg, gk: Arg, gv: Arg, shape,
    mask_strides, causal: bool, scale: float,
) -> list[Grid]:  # fmt: skip
    operands = (q, k, v, gy, mask, gq, gk, gv, shape, mask_strides, causal, scale)
    if tile := halves.tile_for(q, k, v, gy):
        return halves.gradients(tile, *operands)
    rows, features, keys, columns = *q.shape[-2:], *v.shape[-2:]
    problems, owners = prod(shape), prod(k.shape[:-2])
    group = problems // max(owners, 1)
    size = max(1, problems * rows * keys)
    scores, by_weights = (Scratch(q.dtype, size) for _ in range(2))
    weights, by_scores = scores, by_weights
    if multiplied(max(features, columns), q, k, v, gy):  # as tensor cores take them
        weights, by_scores = (Scratch(q.dtype, size, stored=q.stored) for _ in range(2))

    def of_rows(array: Arg | Scratch, length: int) -> Side:
        return Side(array, length, 1, (group * rows * length, rows * length))  # pyright: ignore[reportArgumentType]

    def turned(array: Arg, length: int) -> Side:
        return Side(array, 1, length, (keys * length, 0))

    def over_rows(array: Scratch, right: Arg, length: int) -> tuple[Side, Side]:
        left = Side(array, 1, keys, (group * rows * keys,))  # pyright: ignore[reportArgumentType]
        return left, Side(right, length, 1, (group * rows * length,))

    each, all_rows = (owners, group), (owners,)
    soften = Grid(
        *(softening(mask_kind(mask)), scores, by_weights, mask or q, shape, mask_strides),
        *(len(shape), problems * rows, rows, keys, scale, int(causal), weights, by_scores),
        grid=-(-problems * rows // _ROWS),
        block=32 * _ROWS,
    )
    own = Side(k, features, 1, (keys * features, 0))
    of_keys, of_values = over_rows(by_scores, q, features), over_rows(weights, gy, columns)
    return [
        *product(of_rows(q, features), turned(k, features), scores, each, rows, keys, features),
        *product(of_rows(gy, columns), turned(v, columns), by_weights, each, rows, keys, columns),
        soften,
        *product(of_rows(by_scores, keys), own, gq, each, rows, features, keys),
        *product(*of_keys, gk, all_rows, keys, features, group * rows),
        *product(*of_values, gv, all_rows, keys, columns, group * rows),
    ]


@cache
def softening(kind: str):
    with_mask = masked_score(kind)

    def soften_weights(
        scores, by_weights, mask, shape, mask_strides, rank, count, rows, keys, scale, causal,
        weights, by_scores,
    ):  # fmt: skip
        """Rows of scores become weights, and gradients by weights those by scores, times `scale`:
        a warp a row. Those may take the place of what they are made of.
        """
        warp, lane = cuda.threadIdx.x // 32, cuda.threadIdx.x % 32
        unit = cuda.blockIdx.x * _ROWS + warp
        row = min(unit, count - 1)
        batch = div32(row, rows)
        i = row - batch * rows
        at = matrix_offset(batch, rank, shape, mask_strides) + i * mask_strides[rank]
        across = mask_strides[rank + 1]
        mine, by_mine = offset(scores, row * keys), offset(by_weights, row * keys)
        weights_out, by_out = offset(weights, row * keys), offset(by_scores, row * keys)
        visible = min(keys, i + 1) if causal else keys
        top = -1e999
        for j in range(lane, visible, 32):
            score = with_mask(mine[j] * scale, mask, at + j * across)
            top = score if score > top or score != score else top
        for distance in range(5):
            other = shuffle_xor(top, 1 << distance)
            top = other if other > top or other != other else top
        shift = 0.0 if top == -1e999 else top
        total = 0.0
        inner = 0.0
        for j in range(lane, visible, 32):
            weight = exp(with_mask(mine[j] * scale, mask, at + j * across) - shift)
            total += weight
            inner += weight * by_mine[j]
        for distance in range(5):
            total += shuffle_xor(total, 1 << distance)
            inner += shuffle_xor(inner, 1 << distance)
        share = 0.0 if total == 0.0 else 1.0 / total
        inner *= share
        if unit < count:
            for j in range(lane, keys, 32):
                weight = 0.0
                by_score = 0.0
                if j < visible:
                    weight = exp(with_mask(mine[j] * scale, mask, at + j * across) - shift) * share
                    by_score = weight * (by_mine[j] - inner) * scale
                weights_out[j] = weight
                by_out[j] = by_score

    soften_weights.__name__ = f"soften_weights_{kind}"
    return soften_weights
