"""layer_norm, rms_norm and their gradients, of rows in registers.

Variances are of distances from the mean, from the same registers. Parameters, one number for each
place of a row, come out of the cache for every row.
"""

from __future__ import annotations

import math
from functools import cache

from opstep.kernels.rows import cuda_long_rows
from opstep.kernels.rows.cuda_rows import Team, rows_grid, steps_for, team_for
from opstep.runtime.device.builtin import offset
from opstep.runtime.device.cuda.compiling.names import cuda, real
from opstep.runtime.device.launch import Arg, Grid


def layer_norm(
    x: Arg, scale: Arg | None, bias: Arg | None, y: Arg, n: int, epsilon: float
) -> Grid | list[Grid]:
    team = team_for(n, [a for a in (x, scale, bias, y) if a], arrays=2 if scale else 1)
    if team is None:
        made_of = (cuda_long_rows.layer_norm_coefficients, cuda_long_rows.layer_norm)
        return cuda_long_rows.from_sums(*made_of, x, None, scale, bias, y, n, epsilon)
    kernel = layer_norm_kernel(team, scale is not None, bias is not None)
    return rows_grid(kernel, team, x.size // n, x, scale or x, bias or x, y, epsilon, n)


def layer_norm_grad(
    x: Arg, gy: Arg, scale: Arg | None, gx: Arg, n: int, epsilon: float
) -> Grid | list[Grid]:
    team = team_for(n, [a for a in (x, gy, scale, gx) if a], arrays=2)
    if team is None:
        made_of = (cuda_long_rows.layer_norm_coefficients, cuda_long_rows.layer_norm_grad)
        return cuda_long_rows.from_sums(*made_of, x, gy, scale, None, gx, n, epsilon)
    kernel = layer_norm_grad_kernel(team, scale is not None)
    return rows_grid(kernel, team, x.size // n, x, gy, scale or gy, gx, epsilon, n)


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
def layer_norm_kernel(team: Team, scaled: bool, moved: bool):
    steps = steps_for(team)
    locate, fetch, put, in_row, total = (
        steps.locate,
        steps.fetch,
        steps.put,
        steps.in_row,
        steps.total,
    )
    held = team.width * team.vectors

    def layer_norm(x, scale, bias, y, epsilon, n, rows):
        row, thread = locate()
        start = min(row, rows - 1) * n
        values = cuda.local.array(held, real)
        params = cuda.local.array(held, real)
        fetch(offset(x, start), n, thread, values, 0.0)
        sum = 0.0
        for k in range(held):
            sum += values[k]
        mean = total(sum, 0) / real(n)
        spread = 0.0
        for k in range(held):
            values[k] -= mean
            spread += values[k] * values[k] if in_row(n, thread, k) else 0.0
        factor = 1.0 / math.sqrt(total(spread, 1) / real(n) + epsilon)
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
    locate, fetch, put, in_row = steps.locate, steps.fetch, steps.put, steps.in_row
    total, totals = steps.total, steps.totals
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
        sum = 0.0
        for k in range(held):
            sum += away[k]
        centre = total(sum, 0) / real(n)
        spread = 0.0
        dot = 0.0
        sum = 0.0
        for k in range(held):
            away[k] = away[k] - centre if in_row(n, thread, k) else 0.0
            spread += away[k] * away[k]
            sum += slopes[k]
            dot += slopes[k] * away[k]
        variance = total(spread, 1) / real(n) + epsilon
        sum, dot = totals(sum, dot, 2)
        factor = 1.0 / math.sqrt(variance)
        mean = sum / real(n)
        slope = dot / real(n) / variance
        for k in range(held):
            slopes[k] = (slopes[k] - mean - away[k] * slope) * factor
        if row < rows:
            put(offset(gx, start), n, thread, slopes)

    return layer_norm_grad


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
