"""The gradient of attention, whose scores are computed again: for a block of queries at a time."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import prod
from typing import Any

import numpy as np

from opstep.kernels.matmul.products import OVERREAD, batch_offset, in_vectors
from opstep.kernels.rows import attention as forward
from opstep.kernels.rows import cuda_attention_grad as gpu
from opstep.kernels.rows.attention import (
    KEYS,
    ROWS,
    dot,
    multiply_packed,
    multiply_rows,
    packed_keys,
    rounded,
    take_exponentials,
)
from opstep.kernels.rows.cuda_attention_tiles import mask_kind
from opstep.kernels.rules.axes import want_shape
from opstep.runtime.device.builtin import clear_run, copy_run, offset, vector_length
from opstep.runtime.device.launch import Arg, Launch, Scratch
from opstep.runtime.ir.op import Mismatch, Op
from opstep.runtime.ir.types import f64
from opstep.runtime.transforms.backward import pull_back

HELD = 1 << 19  # bytes of scores that a lane works on


class scaled_dot_product_attention_grad(Op):
    """The gradients of scaled_dot_product_attention with respect to q, k and v.

    Leading axes are equal, but for heads with `enable_gqa`. The mask is taken as constant.
    """

    signature = (
        "scaled_dot_product_attention_grad(q: F, k: F, v: F, gy: F, mask: T2?, *,"
        " causal: bool = false, scale: float = none, enable_gqa: bool = false)"
    )
    results = ("gq", "gk", "gv")
    source = "Dao et al. 2022; ATen _scaled_dot_product_flash_attention_backward"

    def infer(q, k, v, gy, mask, *, causal, scale, enable_gqa):
        attrs = {"causal": causal, "scale": scale, "enable_gqa": enable_gqa}
        y = forward.scaled_dot_product_attention.infer(q, k, v, mask, **attrs)
        want_shape(gy, y, 3)
        axes = -3 if enable_gqa else -2
        for at, t in ((1, k), (2, v)):
            if t.rank != q.rank or t.shape[:axes] != q.shape[:axes]:
                raise Mismatch(f"leading axes of {t} are not those of {q}", at)
        return q, k, v

    def oracle(q, k, v, gy, mask=None, *, causal, scale, enable_gqa):
        keys, values = k, v
        if enable_gqa:
            keys, values = (np.repeat(a, q.shape[-3] // a.shape[-3], -3) for a in (k, v))
        factor = forward.scale_of(scale, q.shape[-1])
        weights = forward.oracle_weights(q, keys, mask, causal, factor)
        by_weights = np.matmul(gy, values.swapaxes(-1, -2))
        inner = np.sum(weights * by_weights, -1, keepdims=True)
        by_scores = weights * (by_weights - inner) * factor
        gk = np.matmul(by_scores.swapaxes(-1, -2), q)
        gv = np.matmul(weights.swapaxes(-1, -2), gy)
        if enable_gqa:
            gk, gv = (_narrowed(g, t.shape[-3]) for g, t in ((gk, k), (gv, v)))
        return np.matmul(by_scores, keys), gk, gv

    def cpu(q, k, v, gy, mask, gq, gk, gv, *, causal, scale, enable_gqa):
        shape, *_, strides = forward.layout(q, k, v, mask, enable_gqa)
        factor = forward.scale_of(scale, q.shape[-1])
        return _blocks(q, k, v, gy, mask, gq, gk, gv, shape, strides, causal, factor)

    def cuda(q, k, v, gy, mask, gq, gk, gv, *, causal, scale, enable_gqa):
        shape, *_, strides = forward.layout(q, k, v, mask, enable_gqa)
        factor = forward.scale_of(scale, q.shape[-1])
        return gpu.gradients(q, k, v, gy, mask, gq, gk, gv, shape, strides, causal, factor)

    def flops(q, k, v, gy, mask=None, *, causal, scale, enable_gqa):
        size: Any = 2 * k.shape[-2] * (3 * q.shape[-1] + 2 * v.shape[-1])
        for d in q.shape[:-1]:
            size = size * d
        return size

    def grad(g, operands, results, grads, *, causal, scale, enable_gqa):
        def formula(q, k, v, gy, mask):
            attrs = {"causal": causal, "scale": scale, "enable_gqa": enable_gqa}
            return forward.gradients(g, q, k, v, gy, mask, False, **attrs)[:3]

        return pull_back(g, formula, operands, grads)


def _narrowed(gradient: np.ndarray, heads: int) -> np.ndarray:
    *outer, many, rows, columns = gradient.shape
    return gradient.reshape(*outer, heads, many // heads, rows, columns).sum(-3)


# --- blocks of queries ----------------------------------------------------------------------------


def _blocks(
    q: Arg, k: Arg, v: Arg, gy: Arg, mask: Arg | None, gq: Arg, gk: Arg, gv: Arg, shape, strides,
    causal: bool, scale: float,
) -> list[Launch]:  # fmt: skip
    rows, features, keys, columns = *q.shape[-2:], *v.shape[-2:]
    size, tiles, problems = q.dtype.itemsize, -(-keys // KEYS), prod(k.shape[:-2])
    spare = OVERREAD // size
    (own, turned), (own_values, more) = packed_keys(k, tiles), packed_keys(v, tiles)
    values, pitch, spread = in_vectors(k)
    launches = [*turned, *more, *spread]
    block = max(8, min(ROWS, -(-rows // 8) * 8, HELD // (2 * size * KEYS * max(tiles, 1)) // 8 * 8))
    held = block * (features + columns + 2 * KEYS * tiles + 1) + spare
    buffer = Scratch(q.dtype, held, per_lane=True)
    group = prod(shape) // max(problems, 1)
    launches.append(
        Launch(
            *(blocks_kernel(mask_kind(mask)), q, v, gy, mask or q, own, own_values, values),
            *(gq, gk, gv),
            *(buffer, Scratch(f64, block, per_lane=True), buffer.size),
            *(block, tuple(j * KEYS for j in range(max(features, columns)))),
            *(tuple(j * pitch for j in range(KEYS)), tuple(j * features for j in range(block))),
            *(tuple(j * columns for j in range(block)), shape, strides, len(shape), group),
            *(rows, keys, features, columns, pitch, tiles, KEYS, scale, int(causal)),
            units=problems,
            grain=1,
        )
    )
    return launches


@cache
def blocks_kernel(kind: str) -> Callable:
    apply_mask = forward.masking(kind)

    def attention_grad_blocks(
        q, v, gy, mask, packed_keys, packed_values, k, gq, gk, gv, held, sums, lane_size, block,
        packed_table, key_table, query_table, value_table, shape, mask_strides, rank, group, rows,
        keys, features, columns, pitch, tiles, width, scale, causal, lo, hi, lane,
    ):  # fmt: skip
        """Units are heads of k and v, with all heads of q that they serve."""
        queries = offset(held, lane * lane_size)
        above = offset(queries, block * features)  # gy of the block
        tops = offset(above, block * columns)
        line = tiles * width
        weights = offset(tops, block)
        by_weights = offset(weights, block * line)
        totals = offset(sums, lane * block)
        for unit in range(lo, hi):
            keys_of_tile = offset(packed_keys, unit * line * features)
            values_of_tile = offset(packed_values, unit * line * columns)
            for i in range(keys * features):
                gk[unit * keys * features + i] = 0.0
            for i in range(keys * columns):
                gv[unit * keys * columns + i] = 0.0
            for turn in range(group):
                batch = unit * group + turn
                masked = batch_offset(batch, rank, shape, mask_strides)
                for i0 in range(0, rows, block):
                    some = min(block, rows - i0)
                    visible = min(keys, i0 + some) if causal else keys
                    first = batch * rows + i0
                    for i in range(some * features):
                        queries[i] = q[first * features + i] * scale
                    # tiles read on to the end of a vector
                    clear_run(offset(queries, some * features), q, vector_length(q))
                    copy_run(above, offset(gy, first * columns), some * columns)
                    clear_run(offset(above, some * columns), q, vector_length(q))
                    multiply_packed(
                        queries, features, keys_of_tile, packed_table, weights, line, some,
                        visible, width,
                    )  # fmt: skip
                    multiply_packed(
                        above, columns, values_of_tile, packed_table, by_weights, line, some,
                        visible, width,
                    )  # fmt: skip
                    for i in range(some):
                        row = offset(weights, i * line)
                        at = masked + (i0 + i) * mask_strides[rank]
                        apply_mask(row, offset(mask, at), mask_strides[rank + 1], visible)
                        if causal:
                            for j in range(i0 + i + 1, visible):
                                row[j] = -1e999
                        differentiate_softmax(
                            row, offset(by_weights, i * line), visible, tops, totals, i
                        )
                    target = offset(gq, first * features)
                    for j0 in range(0, visible, width):
                        multiply_rows(
                            min(width, visible - j0), offset(by_weights, j0), line, 1,
                            offset(k, (unit * keys + j0) * pitch), key_table, target, some,
                            features, int(j0 > 0),
                        )  # fmt: skip
                    for i in range(some * features):
                        target[i] = target[i] * scale if visible > 0 else 0.0
                    multiply_rows(
                        some, by_weights, 1, line, queries, query_table,
                        offset(gk, unit * keys * features), visible, features, 1,
                    )  # fmt: skip
                    multiply_rows(
                        some, weights, 1, line, above, value_table,
                        offset(gv, unit * keys * columns), visible, columns, 1,
                    )  # fmt: skip

    attention_grad_blocks.__name__ = f"attention_grad_blocks_{kind}"
    return attention_grad_blocks


def differentiate_softmax(row, by_row, count, tops, totals, i):
    """Scores become weights, and gradients by weights those by scores."""
    tops[i] = -1e999
    totals[i] = 0.0
    if count > 0:
        take_exponentials(row, count, tops, totals, i)
    share = rounded(0.0 if totals[i] == 0.0 else 1.0 / totals[i])
    for j in range(count):
        row[j] *= share
    inner = rounded(dot(row, by_row, count))
    for j in range(count):
        by_row[j] = row[j] * (by_row[j] - inner)
