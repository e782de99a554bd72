"""Scaled dot-product attention as one op, which has the scores of one tile at a time.

A block of queries goes over the keys tile by tile. It keeps the largest score of each row so far,
the sum of exponentials and the weighted sum of values, which are scaled down when a larger score is
found (Milakov and Gimelshein 2018, arXiv:1805.02867; Dao et al. 2022, arXiv:2205.14135). Tiles
follow each other in the order of the keys, whatever thread works on them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from math import prod

import numpy as np

from opstep.kernels.math.fastmath import exp
from opstep.kernels.matmul.products import (
    OVERREAD,
    batch_offset,
    clear_ends,
    in_vectors,
    multiply_add,
    transpose,
)
from opstep.kernels.pointwise.broadcast import broadcast_shape, broadcast_strides
from opstep.kernels.reduce.runs import RUN, dot_of, largest_of, row_sum
from opstep.kernels.rows import cuda_attention as gpu
from opstep.kernels.rows.cuda_attention_tiles import mask_kind, masked_score
from opstep.runtime.device.builtin import (
    clear_run,
    inner_tile_1x8,
    offset,
    outer_tile_8,
    vector_length,
)
from opstep.runtime.device.launch import Arg, Grid, Launch, Scratch
from opstep.runtime.device.source import by_dtype
from opstep.runtime.ir.dims import Dim
from opstep.runtime.ir.op import Mismatch, Op
from opstep.runtime.ir.types import TensorType, f64

ROWS = 64  # queries of a block
KEYS = 144  # of a tile: three vectors wide on any machine, so many times
FEW = 8  # queries under which each is worked on alone


class scaled_dot_product_attention(Op):
    """The mean of the rows of v, weighted for each row of q by its similarity to the rows of k.

    q [..., L, E], k [..., S, E], v [..., S, D]; y [..., L, D]. Leading axes broadcast. `mask`
    broadcasts to [..., L, S]: numbers that are added to the scores, or bool, where false stands for
    -inf: as in PyTorch, a masked score that is NaN or inf makes its row NaN. With `causal`, row i
    of q sees rows 0 to i of k. `scale` is 1/sqrt(E) unless set. With `enable_gqa`, heads (axis -3)
    of k and v each serve several successive heads of q. A row of q that sees nothing gives 0. The
    scores of all rows are never in memory at the same time, but in the gradient where leading axes
    broadcast, or by a mask.
    """

    signature = (
        "scaled_dot_product_attention(q: F, k: F, v: F, mask: T2?, *, causal: bool = false,"
        " scale: float = none, enable_gqa: bool = false)"
    )
    formula = "softmax(q * k^T * scale + mask) * v"
    source = "Vaswani et al. 2017; torch.nn.functional.scaled_dot_product_attention"
    views = 3

    def infer(q, k, v, mask, *, causal, scale, enable_gqa):
        batch = _batch(q, k, v, enable_gqa)
        if mask is not None:
            if not (mask.dtype.is_float or mask.dtype.kind == "b"):
                raise Mismatch(f"a mask is of bools or floats, not {mask}", 3)
            scores = q.with_shape((*batch, q.shape[-2], k.shape[-2]))
            if broadcast_shape(scores, mask) != scores.shape:
                raise Mismatch(f"{mask} does not broadcast to the scores, {scores}", 3)
        return q.with_shape((*batch, q.shape[-2], v.shape[-1]))

    def oracle(q, k, v, mask=None, *, causal, scale, enable_gqa):
        if enable_gqa:
            k, v = (np.repeat(a, q.shape[-3] // a.shape[-3], -3) for a in (k, v))
        return np.matmul(oracle_weights(q, k, mask, causal, scale_of(scale, q.shape[-1])), v)

    def cpu(q, k, v, mask, y, *, causal, scale, enable_gqa):
        shape, *strides = layout(q, k, v, mask, enable_gqa)
        factor = scale_of(scale, q.shape[-1])
        return _attend(q, k, v, mask, y, shape, strides, causal, factor) if y.size else []

    def cuda(q, k, v, mask, y, *, causal, scale, enable_gqa):
        if not y.size:
            return []
        shape, *_, own = layout(q, k, v, mask, enable_gqa)
        each = k.shape[-3] if enable_gqa else 0
        places = [gpu.places(a, y, each) for a in (q, k, v, y)]
        factor = scale_of(scale, q.shape[-1])
        return gpu.attend(q, k, v, mask, y, shape, (*places, own), causal, factor)

    def flops(q, k, v, mask=None, *, causal, scale, enable_gqa):
        size: Dim = 2 * k.shape[-2] * (q.shape[-1] + v.shape[-1])
        for d in (*_batch(q, k, v, enable_gqa), q.shape[-2]):
            size = size * d
        return size

    def grad(g, operands, results, grads, *, causal, scale, enable_gqa):
        q, k, v, mask = operands
        (gy,) = grads
        attrs = {"causal": causal, "scale": scale, "enable_gqa": enable_gqa}
        axes = -3 if enable_gqa else -2
        masked = mask is not None and mask.dtype.is_float and g.wants(mask)
        if not masked and q.shape[:axes] == k.shape[:axes] == v.shape[:axes]:
            found = g.scaled_dot_product_attention_grad(q, k, v, gy, mask, **attrs)
            return *found, None
        return gradients(g, q, k, v, gy, mask, masked, **attrs)


# --- shapes ---------------------------------------------------------------------------------------


def scale_of(scale: float | None, features: int) -> float:
    return scale if scale is not None else 1.0 / math.sqrt(max(features, 1))


def oracle_weights(q, k, mask, causal: bool, scale: float) -> np.ndarray:
    """What the rows of v are weighted by, with 0 for a row of q that sees nothing."""
    scores = np.matmul(q, k.swapaxes(-1, -2)) * scale
    if mask is not None:
        scores = scores + (np.where(mask, 0, -np.inf) if mask.dtype.kind == "b" else mask)
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    top = np.max(scores, -1, keepdims=True, initial=-np.inf)
    weights = np.exp(scores - np.where(top == -np.inf, 0.0, top))
    total = np.sum(weights, -1, keepdims=True)
    return weights / np.where(total == 0.0, 1.0, total)


def _batch(q: TensorType, k: TensorType, v: TensorType, enable_gqa: bool) -> tuple[Dim, ...]:
    """The axes before the last two of the result; raises Mismatch."""
    least = 3 if enable_gqa else 2
    for at, t in enumerate((q, k, v)):
        if t.rank < least:
            raise Mismatch(f"{t} has {t.rank} axes, and attention needs {least}", at)
    if q.shape[-1] != k.shape[-1]:
        raise Mismatch(f"rows of {q} and {k} are not of one length", 1)
    if k.shape[-2] != v.shape[-2]:
        raise Mismatch(f"{v} has not a row for each of {k}", 2)
    parts = [TensorType(t.dtype, tuple(t.shape[:-2])) for t in (q, k, v)]
    if enable_gqa:
        heads, shared = q.shape[-3], k.shape[-3]
        if v.shape[-3] != shared:
            raise Mismatch(f"{v} has not the heads of {k}", 2)
        whole = type(heads) is int and type(shared) is int
        if heads != shared and not (whole and shared > 0 and heads % shared == 0):  # pyright: ignore[reportOperatorIssue]
            raise Mismatch(f"{heads} heads of {q} cannot share the {shared} of {k}", 1)
        parts = [t.with_shape((*t.shape[:-1], heads)) for t in parts]
    return broadcast_shape(*parts)


def layout(q: Arg, k: Arg, v: Arg, mask: Arg | None, enable_gqa: bool) -> tuple:
    """How many problems there are, as a shape, and how far apart they are in q, k, v (each in
    matrices) and the mask (in elements, with those of a row and a column at the end).
    """
    batch = _batch(q, k, v, enable_gqa)  # pyright: ignore[reportArgumentType] - concrete
    shape: tuple[int, ...] = batch  # pyright: ignore[reportAssignmentType]
    rank, each = len(shape), k.shape[-3] if enable_gqa else 1
    strides = [list(broadcast_strides(t.shape[:-2], rank)) for t in (q, k, v)]
    scores = (*shape, q.shape[-2], k.shape[-2])
    own = list(broadcast_strides(mask.shape if mask is not None else (), len(scores)))
    if enable_gqa:  # heads of q as groups of those that share one
        group = shape[-1] // max(each, 1)
        shape = (*shape[:-1], each, group)
        own[rank - 1 : rank] = [own[rank - 1] * group, own[rank - 1]]
        strides[0][-1:] = [strides[0][-1] * group, strides[0][-1]]
        for one in strides[1:]:
            one.append(0)
    return shape, *map(tuple, strides), tuple(own)


# --- the gradient, of ops -------------------------------------------------------------------------


def gradients(g, q, k, v, gy, mask, masked: bool, *, causal, scale, enable_gqa) -> tuple:
    """By q, k, v, and where it is `masked` the mask, with all weights in memory."""
    factor = 1.0 if scale is None else scale
    if scale is None and type(q.shape[-1]) is int:
        factor = scale_of(None, q.shape[-1])
    elif scale is None:
        factor = g.rsqrt(g.extent(of=[q.shape[-1]], dtype=gy.dtype))
    keys, values = (widened(g, q, a) if enable_gqa else a for a in (k, v))
    weights = weights_of(g, g.mul(q, factor), keys, mask, causal)
    by_weights = g.matmul(gy, values, transpose_b=True)
    by_scores = g.softmax_grad(weights, by_weights)
    by_q = g.mul(g.matmul(by_scores, keys), factor)
    by_k = g.mul(g.matmul(by_scores, q, transpose_a=True), factor)
    by_v = g.matmul(weights, gy, transpose_a=True)
    if enable_gqa:
        by_k, by_v = _narrowed(g, by_k, k), _narrowed(g, by_v, v)
    by_mask = g.sum_to(by_scores, mask) if masked else None
    return g.sum_to(by_q, q), g.sum_to(by_k, k), g.sum_to(by_v, v), by_mask


def weights_of(g, q, k, mask, causal: bool):
    """What the rows of v are weighted by, with 0 for a row that sees nothing."""
    scores = g.matmul(q, k, transpose_b=True)
    if mask is not None:
        if mask.dtype.kind == "b":  # inf and NaN less infinity are NaN
            seen = g.logical_or(mask, g.logical_not(g.isfinite(scores)))
            scores = g.where(seen, scores, -math.inf)
        else:
            scores = g.add(scores, mask)
    if causal:
        rows, columns = scores.shape[-2:]
        at = g.iota(shape=[rows, 1], axis=0), g.iota(shape=[1, columns], axis=1)
        scores = g.where(g.greater_equal(*at), scores, -math.inf)
    weights = g.softmax(scores)
    if mask is None:
        return weights
    unseen = g.equal(g.max(scores, axes=[-1], keepdims=True), -math.inf)
    return g.where(unseen, 0.0, weights)


def widened(g, q, t):
    """k or v with each head as often as heads of q share it."""
    *outer, heads, rows, columns = t.shape
    if heads == q.shape[-3]:
        return t
    group = q.shape[-3] // heads
    many = g.broadcast(g.unsqueeze(t, axes=[-3]), shape=[*outer, heads, group, rows, columns])
    return g.reshape(many, shape=[*outer, q.shape[-3], rows, columns])


def _narrowed(g, gradient, t):
    """The sum over heads that shared one of k or v."""
    *outer, heads, rows, columns = gradient.shape
    if heads == t.shape[-3]:
        return gradient
    shape = [*outer, t.shape[-3], heads // t.shape[-3], rows, columns]
    return g.sum(g.reshape(gradient, shape=shape), axes=[-3])


# --- launches -------------------------------------------------------------------------------------


def packed_keys(t: Arg, tiles: int) -> tuple[Scratch, list[Launch]]:
    """Tiles of the rows of a matrix, with a column for each, and what lays them out."""
    *batch, rows, length = t.shape
    units = prod(batch) * tiles
    packed = Scratch(t.dtype, units * KEYS * length + OVERREAD // t.dtype.itemsize)
    grain = max(1, 32768 // (KEYS * max(length, 1)))
    launch = Launch(turn_keys, t, packed, rows, length, KEYS, tiles, units=units, grain=grain)
    return packed, [launch] if length else []


def _attend(
    q: Arg, k: Arg, v: Arg, mask: Arg | None, y: Arg, shape, strides, causal: bool, scale: float
) -> list[Launch | Grid]:
    rows, features, keys, columns = *q.shape[-2:], *v.shape[-2:]
    launches: list[Launch | Grid] = []
    if few := rows < FEW:  # keys and values are read where they are
        block, own, own_size, values, pitch = 1, k, keys * features, v, columns
        tables = tuple(j * features for j in range(8)), (0,)
        grain = (1 << 18) // (max(keys, 1) * (features + columns))
    else:
        block, tiles = min(ROWS, -(-rows // 8) * 8), -(-keys // KEYS)
        own, turned = packed_keys(k, tiles)
        values, pitch, spread = in_vectors(v)
        launches += [*turned, *spread]
        own_size = tiles * KEYS * features
        tables = tuple(j * KEYS for j in range(features)), tuple(j * pitch for j in range(KEYS))
        grain = (1 << 20) // (2 * block * max(keys, 1) * (features + columns))
    spare = OVERREAD // y.dtype.itemsize
    held = Scratch(y.dtype, block * (features + KEYS + 1) + spare, per_lane=True)
    sums = Scratch(f64, block, per_lane=True)
    blocks = -(-rows // block)
    launches.append(
        Launch(
            *(attending(mask_kind(mask), few), q, own, values, mask or q, y, held, sums),
            *(held.size, sums.size, block, *tables, shape, *strides, len(shape)),
            *(rows, keys, own_size, features, columns, pitch, KEYS, scale, int(causal)),
            units=prod(shape) * blocks,
            grain=max(1, grain),
        )
    )
    return launches


# --- kernels --------------------------------------------------------------------------------------


def _as_f32(number):
    return np.float32(number)


@by_dtype(f32=_as_f32)
def rounded(number):
    """An f64 in the kernel's type."""
    return np.float64(number)


def dot(a, b, n):
    """The sum of a * b."""
    total = np.float64(0.0)
    for start in range(0, n, RUN):
        total += dot_of(offset(a, start), offset(b, start), 0.0, min(RUN, n - start))
    return total


def turn_keys(k, packed, keys, features, width, tiles, lo, hi):
    """Tiles of k with a column for each key; units are tiles."""
    for unit in range(lo, hi):
        batch = unit // tiles
        first = (unit - batch * tiles) * width
        source = offset(k, (batch * keys + first) * features)
        target = offset(packed, unit * width * features)
        count = min(width, keys - first)
        clear_ends(target, width, features, count)
        transpose(source, features, target, width, count, features)


def take_exponentials(row, count, tops, totals, i):
    """Scores become exponentials; gives what earlier ones are to be multiplied with."""
    old = tops[i]
    largest = largest_of(row, count)
    top = largest if largest > old or largest != largest else old
    tops[i] = top
    shift = 0.0 if top == -1e999 else top
    for j in range(count):
        row[j] = exp(row[j] - shift)
    factor = 1.0 if top == old else rounded(exp(old - shift))
    totals[i] = totals[i] * factor + row_sum(row, count)
    return factor


@cache
def masking(kind: str) -> Callable:
    """A function that masks the scores of a row with `count` elements of the mask, `step` apart."""
    with_mask = masked_score(kind)

    def mask_row(row, mask, step, count):
        for j in range(count):
            row[j] = with_mask(row[j], mask, j * step)

    return mask_row


@cache
def attending(kind: str, few: bool) -> Callable:
    """The kernel. With `few`, a block is one row of q, and keys and values are in rows."""
    apply_mask = masking(kind)

    def score_row(queries, features, keys, j0, table, scores, width, some, count):
        for j in range(0, count, 8):
            out, key = offset(scores, j), offset(keys, (j0 + j) * features)
            inner_tile_1x8(
                features, queries, 0, key, table, out, 0, 1, 0, out, 1, count - j
            )  # fmt: skip

    def score_block(queries, features, keys, j0, table, scores, width, some, count):
        tile = offset(keys, j0 * features)
        multiply_packed(queries, features, tile, table, scores, width, some, count, width)

    def weigh_row(count, scores, width, values, table, target, some, columns, later):
        if not later:
            clear_run(target, scores, columns)
        add_weighted(scores, values, target, count, columns)

    def weigh_block(count, scores, width, values, table, target, some, columns, later):
        multiply_rows(count, scores, width, 1, values, table, target, some, columns, later)

    score = score_row if few else score_block
    weigh = weigh_row if few else weigh_block

    def attend(
        q, k, v, mask, y, held, sums, lane_size, sums_size, block, key_table, value_table, shape,
        q_strides, k_strides, v_strides, mask_strides, rank, rows, keys, own_size, features,
        columns, pitch, width, scale, causal, lo, hi, lane,
    ):  # fmt: skip
        """Units are blocks of rows of q."""
        queries = offset(held, lane * lane_size)
        tops = offset(queries, block * features)
        scores = offset(tops, block)
        totals = offset(sums, lane * sums_size)
        blocks = (rows + block - 1) // block
        for unit in range(lo, hi):
            batch = unit // blocks
            i0 = (unit - batch * blocks) * block
            some = min(block, rows - i0)
            source = batch_offset(batch, rank, shape, q_strides) * rows + i0
            own = offset(k, batch_offset(batch, rank, shape, k_strides) * own_size)
            values = offset(v, batch_offset(batch, rank, shape, v_strides) * keys * pitch)
            masked = batch_offset(batch, rank, shape, mask_strides) + i0 * mask_strides[rank]
            target = offset(y, (batch * rows + i0) * columns)
            query_rows = offset(q, source * features)
            for i in range(some * features):
                queries[i] = query_rows[i] * scale
            for i in range(some):
                tops[i] = -1e999
                totals[i] = 0.0
            visible = min(keys, i0 + some) if causal else keys
            if visible == 0:
                for i in range(some * columns):
                    target[i] = 0.0
            for j0 in range(0, visible, width):
                count = min(width, visible - j0)
                score(queries, features, own, j0, key_table, scores, width, some, count)
                for i in range(some):
                    row = offset(scores, i * width)
                    at = masked + i * mask_strides[rank] + j0 * mask_strides[rank + 1]
                    apply_mask(row, offset(mask, at), mask_strides[rank + 1], count)
                    if causal:
                        for j in range(max(0, i0 + i + 1 - j0), count):
                            row[j] = -1e999
                    factor = take_exponentials(row, count, tops, totals, i)
                    if j0 > 0 and factor != 1.0:
                        for e in range(columns):
                            target[i * columns + e] *= factor
                below = offset(values, j0 * pitch)
                weigh(count, scores, width, below, value_table, target, some, columns, int(j0 > 0))
            for i in range(some):
                share = rounded(0.0 if totals[i] == 0.0 else 1.0 / totals[i])
                for e in range(columns):
                    target[i * columns + e] *= share

    attend.__name__ = f"attend_{'rows' if few else 'blocks'}_{kind}"
    return attend


def multiply_packed(left, steps, packed, table, out, line, rows, columns, width):
    """out[i, j] = the sum of left[i, e] * b[e, j], where b lies in tiles of `width` columns."""
    widest = 3 * vector_length(left)
    for j0 in range(0, columns, width):
        count = min(width, columns - j0)
        tile = offset(packed, j0 * steps)
        for j in range(0, count, widest):
            for i in range(0, rows, 8):
                to = offset(out, i * line + j0 + j)
                outer_tile_8(
                    steps, offset(left, i * steps), steps, 1, offset(tile, j), table, to, line, 0,
                    to, 0, rows - i, min(widest, count - j), 0, table,
                )  # fmt: skip


def multiply_rows(steps, left, left_row, left_step, right, table, out, rows, columns, mode):
    """out[i, e] = the sum of left[i, j] * right[j, e], added to what is there with mode 1."""
    vector = vector_length(left)
    parts = max(1, (columns + 3 * vector - 1) // (3 * vector))
    wide = max(1, (columns + parts - 1) // parts)  # tiles are alike
    wide = (wide + vector - 1) // vector * vector
    for e in range(0, columns, wide):
        for i in range(0, rows, 8):
            to = offset(out, i * columns + e)
            outer_tile_8(
                steps, offset(left, i * left_row), left_row, left_step, offset(right, e), table,
                to, columns, mode, to, columns, rows - i, min(wide, columns - e), 0, table,
            )  # fmt: skip


def add_weighted(weights, v, y, count, columns):
    """y += weights·v: four rows of v at a time."""
    whole = count // 4 * 4
    for j in range(0, whole, 4):
        w0, w1, w2, w3 = weights[j], weights[j + 1], weights[j + 2], weights[j + 3]
        row0 = offset(v, j * columns)
        row1 = offset(v, (j + 1) * columns)
        row2 = offset(v, (j + 2) * columns)
        row3 = offset(v, (j + 3) * columns)
        for e in range(columns):
            y0 = multiply_add(w0, row0[e], y[e])
            y1 = multiply_add(w1, row1[e], y0)
            y2 = multiply_add(w2, row2[e], y1)
            y[e] = multiply_add(w3, row3[e], y2)
    for j in range(whole, count):
        one = weights[j]
        row = offset(v, j * columns)
        for e in range(columns):
            y[e] = multiply_add(one, row[e], y[e])
