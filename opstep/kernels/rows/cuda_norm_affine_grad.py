"""All gradients of layer_norm, of rows in registers: sums over rows are made as rows go by.

Variances are of distances from the mean, from the same registers. Scales, one number for each place
of a row, come out of the cache for every row.
"""

from __future__ import annotations

import math
from functools import cache

from opstep.kernels.schedules.cuda.teams import WARP, Team, steps_for, team_for
from opstep.runtime.device.builtin import offset
from opstep.runtime.device.cuda.compiling.names import cuda, real
from opstep.runtime.device.launch import Arg, Grid, Scratch

MOST_PARTS = 1024  # of rows, whose sums are kept apart
ADDING = 16  # warps of a block that add up parts


def team_of(n: int, args: list[Arg]) -> Team | None:
    """None where rows of n elements are too long."""
    return team_for(n, args, arrays=4)


def layer_norm_affine_grad(
    x: Arg, gy: Arg, scale: Arg, gx: Arg, g_scale: Arg, g_bias: Arg, n: int, epsilon: float
) -> list[Grid]:
    team, rows = team_of(n, [x, gy, scale, gx]), x.size // n
    if team is None:
        raise ValueError("rows are too long for registers")
    each = -(-rows // MOST_PARTS)
    parts = -(-rows // each)
    sums = Scratch(x.dtype, 2 * parts * n)
    args = (x, gy, scale, gx, sums, each, parts, epsilon, n, rows)
    kernel = layer_norm_affine_grad_kernel(team)
    adding = (sums, g_scale, g_bias, parts, n)
    return [
        Grid(kernel, *args, grid=team.grid(parts), block=team.block),
        Grid(add_parts, *adding, grid=-(-n // WARP), block=WARP * ADDING),
    ]


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
