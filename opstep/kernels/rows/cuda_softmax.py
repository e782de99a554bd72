"""softmax, log_softmax and their gradients, of rows in registers."""

from __future__ import annotations

import math
from functools import cache

from opstep.kernels.schedules.cuda.teams import Team, exp_for, rows_grid, steps_for, team_for
from opstep.runtime.device.builtin import offset
from opstep.runtime.device.cuda.compiling.names import cuda, fmax, real
from opstep.runtime.device.launch import Arg, Grid


def along_rows(maker, args: tuple[Arg, ...], n: int) -> Grid | None:
    """A launch of the kernel that `maker` makes over rows of n elements; None where they are too
    long.
    """
    team = team_for(n, list(args), arrays=len(args) - 1)
    if team is None:
        return None
    return rows_grid(maker(team), team, args[0].size // n, *args, n)


@cache
def softmax(team: Team):
    steps = steps_for(team)
    locate, fetch, put = steps.locate, steps.fetch, steps.put
    largest, total = steps.largest, steps.total
    exp = exp_for(team)
    held = team.width * team.vectors

    def softmax(x, y, n, rows):
        row, thread = locate()
        start = min(row, rows - 1) * n
        values = cuda.local.array(held, real)
        fetch(offset(x, start), n, thread, values, -1e999)
        top = values[0]
        for k in range(1, held):
            top = fmax(top, values[k])
        top = largest(top, 0)
        sum = 0.0
        for k in range(held):
            values[k] = exp(values[k] - top)
            sum += values[k]
        share = 1.0 / total(sum, 1)
        for k in range(held):
            values[k] *= share
        if row < rows:
            put(offset(y, start), n, thread, values)

    return softmax


@cache
def log_softmax(team: Team):
    steps = steps_for(team)
    locate, fetch, put = steps.locate, steps.fetch, steps.put
    largest, total = steps.largest, steps.total
    exp = exp_for(team)
    held = team.width * team.vectors

    def log_softmax(x, y, n, rows):
        row, thread = locate()
        start = min(row, rows - 1) * n
        values = cuda.local.array(held, real)
        fetch(offset(x, start), n, thread, values, -1e999)
        top = values[0]
        for k in range(1, held):
            top = fmax(top, values[k])
        top = largest(top, 0)
        sum = 0.0
        for k in range(held):
            values[k] -= top
            sum += exp(values[k])
        log_sum = math.log(total(sum, 1))
        for k in range(held):
            values[k] -= log_sum
        if row < rows:
            put(offset(y, start), n, thread, values)

    return log_softmax


@cache
def softmax_grad(team: Team):
    steps = steps_for(team)
    locate, fetch, put, total = steps.locate, steps.fetch, steps.put, steps.total
    held = team.width * team.vectors

    def softmax_grad(y, gy, gx, n, rows):
        row, thread = locate()
        start = min(row, rows - 1) * n
        shares = cuda.local.array(held, real)
        values = cuda.local.array(held, real)
        fetch(offset(y, start), n, thread, shares, 0.0)
        fetch(offset(gy, start), n, thread, values, 0.0)
        sum = 0.0
        for k in range(held):
            sum += shares[k] * values[k]
        mean = total(sum, 0)
        for k in range(held):
            values[k] = shares[k] * (values[k] - mean)
        if row < rows:
            put(offset(gx, start), n, thread, values)

    return softmax_grad


@cache
def log_softmax_grad(team: Team):
    steps = steps_for(team)
    locate, fetch, put, total = steps.locate, steps.fetch, steps.put, steps.total
    exp = exp_for(team)
    held = team.width * team.vectors

    def log_softmax_grad(y, gy, gx, n, rows):
        row, thread = locate()
        start = min(row, rows - 1) * n
        logs = cuda.local.array(held, real)
        values = cuda.local.array(held, real)
        fetch(offset(y, start), n, thread, logs, 0.0)
        fetch(offset(gy, start), n, thread, values, 0.0)
        sum = 0.0
        for k in range(held):
            sum += values[k]
        sum = total(sum, 0)
        for k in range(held):
            values[k] -= exp(logs[k]) * sum
        if row < rows:
            put(offset(gx, start), n, thread, values)

    return log_softmax_grad
