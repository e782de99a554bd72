"""layer_norm, rms_norm and their gradients, of rows in registers.

Variances are of distances from the mean, from the same registers. Parameters, one number for each
place of a row, come out of the cache for every row.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from opstep.kernels.rows import cuda_long_rows
from opstep.kernels.schedules.cuda.teams import WARP, Team, rows_grid, steps_for, team_for
from opstep.runtime.device.builtin import offset
from opstep.runtime.device.cuda.compiling.names import cuda, real
from opstep.runtime.device.launch import Arg, Grid, Scratch

MOST_PARTS = 1024  # of rows, whose sums are kept apart
ADDING = 16  # warps of a block that add up parts
COLUMNS = 256  # places of long rows that a block sums


def layer_norm(
    x: Arg, scale: Arg | None, bias: Arg | None, y: Arg, n: int, epsilon: float,
    statistics: tuple[Arg, ...] = (),
) -> Grid | list[Grid]:  # fmt: skip
    """`statistics`: where the mean and the inverse deviation of each row are to be left, if any."""
    team = team_for(n, [a for a in (x, scale, bias, y) if a], arrays=2 if scale else 1)
    if team is None:
        coefficients = cuda_long_rows.layer_norm_coefficients
        finish = cuda_long_rows.layer_norm_statistics if statistics else coefficients
        made_of = (finish, cuda_long_rows.layer_norm)
        return cuda_long_rows.from_sums(*made_of, x, None, scale, bias, y, n, epsilon, statistics)
    kernel = layer_norm_kernel(team, scale is not None, bias is not None, bool(statistics))
    args = (x, scale or x, bias or x, y, *(statistics or (x, x)))
    return rows_grid(kernel, team, x.size // n, *args, epsilon, n)


def layer_norm_grad(
    x: Arg, gy: Arg, scale: Arg | None, gx: Arg, n: int, epsilon: float
) -> Grid | list[Grid]:
    team = team_for(n, [a for a in (x, gy, scale, gx) if a], arrays=2)
    if team is None:
        made_of = (cuda_long_rows.layer_norm_coefficients, cuda_long_rows.layer_norm_grad)
        return cuda_long_rows.from_sums(*made_of, x, gy, scale, None, gx, n, epsilon)
    kernel = layer_norm_grad_kernel(team, scale is not None)
    return rows_grid(kernel, team, x.size // n, x, gy, scale or gy, gx, epsilon, n)


def layer_norm_affine_grad(
    x: Arg, gy: Arg, scale: Arg, gx: Arg, g_scale: Arg, g_bias: Arg, n: int, epsilon: float
) -> list[Grid]:
    team = team_for(n, [x, gy, scale, gx], arrays=4)
    rows = x.size // n
    each = -(-rows // MOST_PARTS) if team else -(-rows * n // (MOST_PARTS * COLUMNS))
    parts = -(-rows // each)
    sums = Scratch(x.dtype, 2 * parts * n)
    args = (sums, g_scale, g_bias, parts, n)
    adding = Grid(add_parts, *args, grid=-(-n // WARP), block=WARP * ADDING)
    if team:
        args = (x, gy, scale, gx, sums, each, parts, epsilon, n, rows)
        kernel = layer_norm_affine_grad_kernel(team)
        return [Grid(kernel, *args, grid=team.grid(parts), block=team.block), adding]
    statistics = (Scratch(x.dtype, rows), Scratch(x.dtype, rows))
    made_of = (cuda_long_rows.layer_norm_statistics, cuda_long_rows.layer_norm_grad)
    args = (x, gy, scale, None, gx, n, epsilon, statistics)
    by_x = cuda_long_rows.from_sums(*made_of, *args)
    args = (x, gy, *statistics, sums, each, parts, n, rows)
    grid = (-(-n // COLUMNS), parts)
    return [*by_x, Grid(sum_parts, *args, grid=grid, block=COLUMNS), adding]


def rms_norm(x: Arg, scale: Arg | None, y: Arg, n: int, epsilon: float) -> Grid | list[Grid]:
    team = team_for(n, [a for a in (x, scale, y) if a], arrays=2 if scale else 1)
    if team is None:
        made_of = (cuda_long_rows.rms_norm_coefficients, cuda_long_rows.rms_norm)
        return cuda_long_rows.from_sums(*made_of, x, None, scale, None, y, n, epsilon)
    kernel = rms_norm_kernel(team, scale is not None)
    return rows_grid(kernel, team, x.size // n, x, scale or x, y, epsilon, n)


def rms_norm_grad(
    x: Arg, gy: Arg, scale: Arg | None, gx: Arg, n: int, epsilon: float
) -> Grid | list[Grid]:
    team = team_for(n, [a for a in (x, gy, scale, gx) if a], arrays=2)
    if team is None:
        made_of = (cuda_long_rows.rms_norm_coefficients, cuda_long_rows.rms_norm_grad)
        return cuda_long_rows.from_sums(*made_of, x, gy, scale, None, gx, n, epsilon)
    kernel = rms_norm_grad_kernel(team, scale is not None)
    return rows_grid(kernel, team, x.size // n, x, gy, scale or gy, gx, epsilon, n)


# --- kernels --------------------------------------------------------------------------------------


@cache
def centring(team: Team):
    """What is known of a row x whose norm is plain: (centred, by_row)."""
    steps = steps_for(team)
    in_row, total, totals = steps.in_row, steps.total, steps.totals
    held = team.width * team.vectors

    def centred(away, n, thread):
        """(mean, variance); the row becomes distances from the mean, 0 past its end."""
        sum = 0.0
        for k in range(held):
            sum += away[k]
        mean = total(sum, 0) / real(n)
        spread = 0.0
        for k in range(held):
            away[k] = away[k] - mean if in_row(n, thread, k) else 0.0
            spread += away[k] * away[k]
        return mean, total(spread, 1) / real(n)

    def by_row(slopes, away, n, variance, factor):
        """Gradients by the plain row become those by x."""
        sum = 0.0
        dot = 0.0
        for k in range(held):
            sum += slopes[k]
            dot += slopes[k] * away[k]
        sum, dot = totals(sum, dot, 2)
        mean = sum / real(n)
        slope = dot / real(n) / variance
        for k in range(held):
            slopes[k] = (slopes[k] - mean - away[k] * slope) * factor

    return centred, by_row


@cache
def layer_norm_kernel(team: Team, scaled: bool, moved: bool, noted: bool):
    steps = steps_for(team)
    locate, fetch, put = steps.locate, steps.fetch, steps.put
    centred, _ = centring(team)
    held = team.width * team.vectors

    def layer_norm(x, scale, bias, y, means, factors, epsilon, n, rows):
        row, thread = locate()
        start = min(row, rows - 1) * n
        values = cuda.local.array(held, real)
        params = cuda.local.array(held, real)
        fetch(offset(x, start), n, thread, values, 0.0)
        mean, variance = centred(values, n, thread)
        factor = 1.0 / math.sqrt(variance + epsilon)
        if noted and row < rows and thread == 0:
            means[row], factors[row] = mean, factor
        for k in range(held):
            values[k] *= factor
        if scaled:
            fetch(scale, n, thread, params, 0.0)
            for k in range(held):
                values[k] *= params[k]
        if moved:
            fetch(bias, n, thread, params, 0.0)
            for k in range(held):
                values[k] += params[k]
        if row < rows:
            put(offset(y, start), n, thread, values)

    return layer_norm


@cache
def layer_norm_grad_kernel(team: Team, scaled: bool):
    steps = steps_for(team)
    locate, fetch, put = steps.locate, steps.fetch, steps.put
    centred, by_row = centring(team)
    held = team.width * team.vectors

    def layer_norm_grad(x, gy, scale, gx, epsilon, n, rows):
        row, thread = locate()
        start = min(row, rows - 1) * n
        away = cuda.local.array(held, real)
        slopes = cuda.local.array(held, real)
        params = cuda.local.array(held, real)
        fetch(offset(x, start), n, thread, away, 0.0)
        fetch(offset(gy, start), n, thread, slopes, 0.0)
        if scaled:
            fetch(scale, n, thread, params, 0.0)
            for k in range(held):
                slopes[k] *= params[k]
        variance = centred(away, n, thread)[1] + epsilon
        by_row(slopes, away, n, variance, 1.0 / math.sqrt(variance))
        if row < rows:
            put(offset(gx, start), n, thread, slopes)

    return layer_norm_grad


@cache
def layer_norm_affine_grad_kernel(team: Team):
    steps = steps_for(team)
    locate, fetch, put, in_row = steps.locate, steps.fetch, steps.put, steps.in_row
    centred, by_row = centring(team)
    width, threads = team.width, team.threads
    held = width * team.vectors

    def layer_norm_affine_grad(x, gy, scale, gx, sums, each, parts, epsilon, n, rows):
        """A team takes `each` rows, and sums gy * plain and gy over them: `sums` of all parts."""
        part, thread = locate()
        away = cuda.local.array(held, real)
        slopes = cuda.local.array(held, real)
        params = cuda.local.array(held, real)
        of_scale = cuda.local.array(held, real)
        of_bias = cuda.local.array(held, real)
        fetch(scale, n, thread, params, 0.0)
        for k in range(held):
            of_scale[k] = 0.0
            of_bias[k] = 0.0
        for row in range(part * each, (part + 1) * each):  # as many for all threads, which wait
            start = min(row, rows - 1) * n
            fetch(offset(x, start), n, thread, away, 0.0)
            fetch(offset(gy, start), n, thread, slopes, 0.0)
            variance = centred(away, n, thread)[1] + epsilon
            factor = 1.0 / math.sqrt(variance)
            for k in range(held):
                if row < rows:
                    of_bias[k] += slopes[k]
                    of_scale[k] += slopes[k] * (away[k] * factor)
                slopes[k] *= params[k]
            by_row(slopes, away, n, variance, factor)
            if row < rows:
                put(offset(gx, start), n, thread, slopes)
        if part < parts:
            for k in range(held):
                if in_row(n, thread, k):
                    i = part * n + (k // width * threads + thread) * width + k % width
                    sums[i] = of_scale[k]
                    sums[parts * n + i] = of_bias[k]

    return layer_norm_affine_grad


def sum_parts(x, gy, means, factors, sums, each, parts, n, rows):
    """The same sums of long rows: a thread takes a place of `each` rows."""
    i = cuda.grid(1)
    part = np.int64(cuda.blockIdx.y)
    of_scale = real(0.0)
    of_bias = real(0.0)
    if i < n:
        for row in range(part * each, min(rows, (part + 1) * each)):
            slope = gy[row * n + i]
            of_bias += slope
            of_scale += slope * ((x[row * n + i] - means[row]) * factors[row])
        sums[part * n + i] = of_scale
        sums[(parts + part) * n + i] = of_bias


def add_parts(sums, g_scale, g_bias, parts, n):
    """A warp reads the sums of 32 neighbouring places of a row; `ADDING` warps share the parts."""
    mine = cuda.shared.array((2, ADDING, WARP), real)
    column, warp = cuda.threadIdx.x % WARP, cuda.threadIdx.x // WARP
    i = cuda.blockIdx.x * WARP + column
    of_scale = real(0.0)
    of_bias = real(0.0)
    if i < n:
        for part in range(warp, parts, ADDING):
            of_scale += sums[part * n + i]
            of_bias += sums[(parts + part) * n + i]
    mine[0, warp, column] = of_scale
    mine[1, warp, column] = of_bias
    cuda.syncthreads()
    if warp == 0 and i < n:
        for other in range(1, ADDING):
            of_scale += mine[0, other, column]
            of_bias += mine[1, other, column]
        g_scale[i] = of_scale
        g_bias[i] = of_bias


@cache
def rms_norm_kernel(team: Team, scaled: bool):
    steps = steps_for(team)
    locate, fetch, put, total = steps.locate, steps.fetch, steps.put, steps.total
    held = team.width * team.vectors

    def rms_norm(x, scale, y, epsilon, n, rows):
        row, thread = locate()
        start = min(row, rows - 1) * n
        values = cuda.local.array(held, real)
        params = cuda.local.array(held, real)
        fetch(offset(x, start), n, thread, values, 0.0)
        squares = 0.0
        for k in range(held):
            squares += values[k] * values[k]
        factor = 1.0 / math.sqrt(total(squares, 0) / real(n) + epsilon)
        for k in range(held):
            values[k] *= factor
        if scaled:
            fetch(scale, n, thread, params, 0.0)
            for k in range(held):
                values[k] *= params[k]
        if row < rows:
            put(offset(y, start), n, thread, values)

    return rms_norm


@cache
def rms_norm_grad_kernel(team: Team, scaled: bool):
    steps = steps_for(team)
    locate, fetch, put, totals = steps.locate, steps.fetch, steps.put, steps.totals
    held = team.width * team.vectors

    def rms_norm_grad(x, gy, scale, gx, epsilon, n, rows):
        row, thread = locate()
        start = min(row, rows - 1) * n
        values = cuda.local.array(held, real)
        slopes = cuda.local.array(held, real)
        params = cuda.local.array(held, real)
        fetch(offset(x, start), n, thread, values, 0.0)
        fetch(offset(gy, start), n, thread, slopes, 0.0)
        if scaled:
            fetch(scale, n, thread, params, 0.0)
            for k in range(held):
                slopes[k] *= params[k]
        squares = 0.0
        dot = 0.0
        for k in range(held):
            squares += values[k] * values[k]
            dot += slopes[k] * values[k]
        squares, dot = totals(squares, dot, 0)
        square = squares / real(n) + epsilon
        factor = 1.0 / math.sqrt(square)
        slope = dot / real(n) / square
        for k in range(held):
            slopes[k] = (slopes[k] - values[k] * slope) * factor
        if row < rows:
            put(offset(gx, start), n, thread, slopes)

    return rms_norm_grad
