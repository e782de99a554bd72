"""Products of a matrix with a vector: bound by memory, so that the matrix is read once, in wide
loads, by as many threads as memory wants.
"""

from __future__ import annotations

from functools import cache

from opstep.kernels.matmul.cuda_gemm_simt import matrix_offset
from opstep.runtime.device.builtin import offset
from opstep.runtime.device.cuda.compiling.names import (
    cuda,
    div32,
    pointer_to,
    real,
    shuffle_xor,
    spread,
)
from opstep.runtime.device.source import Intrinsic

THREADS = 256  # of a block
WARPS = THREADS // 32
_AHEAD = 4  # loads that a thread has under way


@cache
def _loader(wide: int):
    """(held, source, i): elements i to i + wide into a local array."""
    load = Intrinsic("load", wide)

    def load_run(held, source, i):
        spread(held, load(source, i))

    def load_one(held, source, i):
        held[0] = source[i]

    return load_run if wide > 1 else load_one


@cache
def dots(wide: int, team: int):
    """The kernel for lines contiguous along the sum, read `wide` elements at once by a team of
    threads (a power of two).
    """
    load, size = _loader(wide), _AHEAD * wide
    line_step, lines = team * wide, THREADS // team
    bits, warps = min(team, 32).bit_length() - 1, team // 32

    def dot_lines(
        x, matrix, bias, y, batch_shape, x_strides, matrix_strides, rank, count, x_step, pitch,
        blocks, parts, part_steps, k, bias_step, biased,
    ):  # fmt: skip
        """y[batch, part, j] = the sum over a part of matrix[j, k] * x[k] (+ bias[j])."""
        of_warps = cuda.shared.array(WARPS, real)
        xs, line = cuda.local.array(size, real), cuda.local.array(size, real)
        x_held, held = pointer_to(xs), pointer_to(line)
        thread = cuda.threadIdx.x
        batch = div32(cuda.blockIdx.x, blocks)
        j = (cuda.blockIdx.x - batch * blocks) * lines + thread // team
        which = div32(batch, parts)
        begin = (batch - which * parts) * part_steps
        end = min(begin + part_steps, k)
        vector = offset(x, matrix_offset(which, rank, batch_shape, x_strides))
        source = offset(matrix, matrix_offset(which, rank, batch_shape, matrix_strides))
        source = offset(source, min(j, count - 1) * pitch)
        total = 0.0
        step = begin + thread % team * wide
        while step + (_AHEAD - 1) * line_step < end:
            for u in range(_AHEAD):
                load(offset(held, u * wide), source, step + u * line_step)
                load(offset(x_held, u * wide), vector, (step + u * line_step) * x_step)
            some = 0.0
            for e in range(size):
                some += held[e] * x_held[e]
            total += some
            step += _AHEAD * line_step
        while step < end:
            load(held, source, step)
            load(x_held, vector, step * x_step)
            for e in range(wide):
                total += held[e] * x_held[e]
            step += line_step
        for bit in range(bits):
            total += shuffle_xor(total, 1 << bit)
        if warps > 1:
            if thread % 32 == 0:
                of_warps[thread // 32] = total
            cuda.syncthreads()
            if thread == 0:
                for w in range(1, warps):
                    total += of_warps[w]
        if thread % team == 0 and j < count:
            if biased:
                total += bias[j * bias_step]
            y[batch * count + j] = total

    return dot_lines


@cache
def weighted(wide: int):
    """The kernel for lines contiguous along the result, of which a warp reads 32 * `wide`
    elements: warps take terms in turn.
    """
    load = _loader(wide)
    columns = 32 * wide
    size, ahead = WARPS * columns, _AHEAD * wide

    def weigh_lines(
        x, matrix, bias, y, batch_shape, x_strides, matrix_strides, rank, count, x_step, pitch,
        blocks, parts, part_steps, k, bias_step, biased,
    ):  # fmt: skip
        """y[batch, part, j] = the sum over a part of matrix[k, j] * x[k] (+ bias[j])."""
        sums = cuda.shared.array(size, real)
        held = pointer_to(cuda.local.array(ahead, real))
        total = pointer_to(cuda.local.array(wide, real))
        thread = cuda.threadIdx.x
        lane, warp = thread % 32, thread // 32
        batch = div32(cuda.blockIdx.x, blocks)
        first = (cuda.blockIdx.x - batch * blocks) * columns
        which = div32(batch, parts)
        begin = (batch - which * parts) * part_steps
        end = min(begin + part_steps, k)
        vector = offset(x, matrix_offset(which, rank, batch_shape, x_strides))
        source = offset(matrix, matrix_offset(which, rank, batch_shape, matrix_strides))
        source = offset(source, min(first + lane * wide, count - wide))
        for e in range(wide):
            total[e] = 0.0
        step = begin + warp
        while step + (_AHEAD - 1) * WARPS < end:
            for u in range(_AHEAD):
                load(offset(held, u * wide), source, (step + u * WARPS) * pitch)
            for u in range(_AHEAD):
                weight = vector[(step + u * WARPS) * x_step]
                for e in range(wide):
                    total[e] += held[u * wide + e] * weight
            step += _AHEAD * WARPS
        while step < end:
            load(held, source, step * pitch)
            weight = vector[step * x_step]
            for e in range(wide):
                total[e] += held[e] * weight
            step += WARPS
        for e in range(wide):
            sums[warp * columns + e * 32 + lane] = total[e]
        cuda.syncthreads()
        for at in range(thread, columns, 32 * WARPS):
            j = first + at % 32 * wide + at // 32
            whole = sums[at]
            for w in range(1, WARPS):
                whole += sums[w * columns + at]
            if j < count:
                if biased:
                    whole += bias[j * bias_step]
                y[batch * count + j] = whole

    return weigh_lines
