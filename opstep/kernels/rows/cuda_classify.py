"""Losses of classifiers on CUDA, and their gradients; see `kernels.rows.classify`.

Scores of a position stay in registers where they lie in a row; those of longer rows are read in
parts. Where the classes do not lie side by side, a thread takes a position.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np

from opstep.kernels.math.fastmath import exp
from opstep.kernels.pointwise.cuda_neighbours import GATHERED
from opstep.kernels.rows.cuda_loss import Partials, write_inverse, write_share
from opstep.kernels.rows.cuda_moments import THREADS, block_sum
from opstep.kernels.rows.cuda_softmax_sums import AT_ONCE, Parts, online_softmax, whole_row
from opstep.kernels.schedules.cuda.teams import Team, exp_for, rows_grid, steps_for, team_for
from opstep.runtime.device.builtin import offset
from opstep.runtime.device.cuda.compiling.names import cuda, div32, fmax, mod32, real
from opstep.runtime.device.launch import Arg, Grid, Scratch
from opstep.runtime.device.source import Intrinsic, pinned
from opstep.runtime.ir.types import f64

LABELS = 4  # that a thread reads before it adds their weights

Positions = tuple[int, int, int]  # before the classes, classes, behind them


def label_loss(
    scores: bool, x: Arg, label: Arg, weight: Arg | None, y: Arg, ignored: int,
    positions: Positions, reduction: str,
) -> list[Grid]:  # fmt: skip
    """`scores`: x is not normalised."""
    before, n, inner = positions
    args = (x, label, weight or x, weight is not None, ignored, reduction == "none", y)
    team = team_for(n, [x]) if scores and inner == 1 else None
    launches: list[Grid] = []
    if team is not None:
        partial = Partials(team.grid(before))
        first = rows_grid(cross_entropy_rows(team), team, before, *args, partial.sums, n)
    elif scores and inner == 1:
        parts, partial = Parts(x, n), Partials(before)
        args = (*args, partial.sums, parts.sums, *parts.args[:2])
        launches.append(parts.launch)
        first = Grid(cross_entropy_of_parts(parts.lowest), *args, grid=before, block=THREADS)
    else:
        count = before * inner
        partial = Partials(-(-count // THREADS))
        kernel = label_columns(scores)
        args = (*args, partial.sums, n, inner, count)
        first = Grid(kernel, *args, grid=partial.count, block=THREADS)
    launches.append(first)
    if reduction == "none":
        return launches
    return [*launches, *partial.finish(write_share, y, 0 if reduction == "mean" else 1)]


def inverse_mass(
    label: Arg, weight: Arg | None, ignored: int, n: int, x: Arg
) -> tuple[list[Grid], Scratch]:
    """(launches, where they leave 1 / the sum of the weights that count)."""
    mass = Scratch(f64, 1)
    partial = Partials(-(-label.size // (THREADS * LABELS)))
    args = (label, weight or x, weight is not None, ignored, n, label.size, partial.sums)
    first = Grid(label_mass, *args, grid=partial.count, block=THREADS)
    return [first, *partial.finish(write_inverse, mass)], mass


def cross_entropy_grad(
    x: Arg, label: Arg, gy: Arg, gy_step: int, weight: Arg | None, mass: Scratch, ignored: int,
    gx: Arg, positions: Positions, factor_of: Callable,
) -> list[Grid]:  # fmt: skip
    before, n, inner = positions
    args = (x, label, gy, gy_step, weight or x, weight is not None, mass, ignored, gx)
    team = team_for(n, [x, gx]) if inner == 1 else None
    if team is not None:
        kernel = cross_entropy_grad_rows(team, factor_of)
        return [rows_grid(kernel, team, before, *args, n)]
    if inner == 1:
        parts = Parts(x, n)
        kernel = cross_entropy_grad_of_parts(parts.width, parts.lowest, parts.exp, factor_of)
        args = (*args, parts.sums, *parts.args)
        return [parts.launch, Grid(kernel, *args, grid=parts.grid, block=THREADS)]
    count = before * inner
    kernel, args = cross_entropy_grad_columns(factor_of), (*args, n, inner, count)
    return [Grid(kernel, *args, grid=-(-count // THREADS), block=THREADS)]


def nll_grad(
    label: Arg, gy: Arg, gy_step: int, weight: Arg, weighted: bool, mass: Scratch, ignored: int,
    gx: Arg, positions: Positions, factor_of: Callable,
) -> Grid:  # fmt: skip
    _, n, inner = positions
    args = (label, gy, gy_step, weight, weighted, mass, ignored, gx, n, inner, gx.size)
    return Grid(nll_grad_elements(factor_of), *args, grid=-(-gx.size // THREADS), block=THREADS)


@pinned("f64")
def loss_of(k, score, log_sum, weight, weighted, ignored, n):
    """(loss, weight) of a position whose label is k; NaN where that is out of range."""
    if k == ignored:
        return 0.0, 0.0
    if k < 0 or k >= n:
        return np.nan, 0.0
    w = np.float64(weight[k]) if weighted else 1.0
    return w * (np.float64(log_sum) - np.float64(score)), w


@cache
def cross_entropy_rows(team: Team):
    steps = steps_for(team)
    locate, fetch, largest, total = steps.locate, steps.fetch, steps.largest, steps.total
    exp = exp_for(team)
    held, teams, threads = team.width * team.vectors, team.teams, team.threads
    room = 2 * teams

    def cross_entropy(x, label, weight, weighted, ignored, each, y, partial, n, rows):
        row, thread = locate()
        start = min(row, rows - 1) * n
        label_here = np.int64(label[min(row, rows - 1)])
        values = cuda.local.array(held, real)
        fetch(offset(x, start), n, thread, values, -1e999)
        score = x[start + min(max(label_here, 0), n - 1)]
        top = values[0]
        for k in range(1, held):
            top = fmax(top, values[k])
        top = largest(top, 0)
        sum = 0.0
        for k in range(held):
            sum += exp(values[k] - top)
        log_sum = np.float64(math.log(total(sum, 1))) + np.float64(top)
        found = cuda.shared.array(room, np.float64)
        if thread == 0:
            loss, mass = np.float64(0.0), np.float64(0.0)
            if row < rows:
                loss, mass = loss_of(label_here, score, log_sum, weight, weighted, ignored, n)
                if each:
                    y[row] = loss
            own = cuda.threadIdx.x // threads
            found[own], found[teams + own] = loss, mass
        cuda.syncthreads()
        if cuda.threadIdx.x == 0 and not each:
            loss, mass = np.float64(0.0), np.float64(0.0)
            for k in range(teams):
                loss += found[k]
                mass += found[teams + k]
            partial[cuda.blockIdx.x] = loss
            partial[cuda.gridDim.x + cuda.blockIdx.x] = mass

    return cross_entropy


@cache
def cross_entropy_of_parts(lowest):
    """A block a position, whose classes were read in parts."""

    def cross_entropy(x, label, weight, weighted, ignored, each, y, partial, sums, n, parts):
        row = np.int64(cuda.blockIdx.x)
        top, sum = whole_row(sums, row, parts, lowest)
        if cuda.threadIdx.x == 0:
            k = np.int64(label[row])
            score = x[row * n + min(max(k, 0), n - 1)]
            log_sum = np.float64(math.log(sum)) + np.float64(top)
            loss, mass = loss_of(k, score, log_sum, weight, weighted, ignored, n)
            if each:
                y[row] = loss
            else:
                partial[row], partial[cuda.gridDim.x + row] = loss, mass

    return cross_entropy


@cache
def label_columns(scores: bool):
    """A thread a position; its classes lie `inner` apart."""

    def label_loss(x, label, weight, weighted, ignored, each, y, partial, n, inner, positions):
        p = cuda.grid(1)
        loss, mass = np.float64(0.0), np.float64(0.0)
        if p < positions:
            outer = p // inner
            start = outer * n * inner + p - outer * inner
            log_sum = np.float64(0.0)
            if scores:
                top, sum = online_softmax(x, start, n, inner)
                log_sum = np.float64(math.log(sum)) + np.float64(top)
            k = np.int64(label[p])
            score = x[start + min(max(k, 0), n - 1) * inner]
            loss, mass = loss_of(k, score, log_sum, weight, weighted, ignored, n)
            if each:
                y[p] = loss
        none = np.float64(0.0)
        block_sum(loss, mass, none, none, partial, cuda.blockIdx.x, cuda.gridDim.x)

    return label_loss


def label_mass(label, weight, weighted, ignored, n, count, partial):
    total = np.float64(0.0)
    start = cuda.blockIdx.x * THREADS * LABELS + cuda.threadIdx.x
    for j in range(LABELS):
        p = start + j * THREADS
        if p < count:
            k = np.int64(label[p])
            if k != ignored and k >= 0 and k < n:
                total += np.float64(weight[k]) if weighted else np.float64(1.0)
    none = np.float64(0.0)
    block_sum(none, total, none, none, partial, cuda.blockIdx.x, cuda.gridDim.x)


@cache
def cross_entropy_grad_rows(team: Team, factor_of: Callable):
    steps = steps_for(team)
    locate, fetch, put = steps.locate, steps.fetch, steps.put
    largest, total = steps.largest, steps.total
    width, threads = team.width, team.threads
    exp = exp_for(team)
    held = width * team.vectors

    def cross_entropy_grad(
        x, label, gy, gy_step, weight, weighted, mass, ignored, gx, n, rows
    ):  # fmt: skip
        row, thread = locate()
        p = min(row, rows - 1)
        start = p * n
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
        label_here = np.int64(label[p])
        factor = real(factor_of(label_here, p, gy, gy_step, weight, weighted, mass, ignored, n))
        share = factor / total(sum, 1)
        inside = label_here >= 0 and label_here < n and label_here != ignored
        for k in range(held):
            values[k] = values[k] * share if inside else factor
            place_of_k = (k // width * threads + thread) * width + k % width
            if inside and place_of_k == label_here:
                values[k] -= factor
        if row < rows:
            put(offset(gx, start), n, thread, values)

    return cross_entropy_grad


@cache
def cross_entropy_grad_of_parts(width: int, lowest, exp: Callable, factor_of: Callable):
    """A block a part of a position's classes."""
    load, store, gathered = Intrinsic("load", width), Intrinsic("store", width), GATHERED[width]
    held, step = width * AT_ONCE, width * THREADS

    def cross_entropy_grad(
        x, label, gy, gy_step, weight, weighted, mass, ignored, gx, sums, n, parts, span
    ):
        row = np.int64(cuda.blockIdx.x) // parts
        top, sum = whole_row(sums, row, parts, lowest)
        label_here = np.int64(label[row])
        factor = real(factor_of(label_here, row, gy, gy_step, weight, weighted, mass, ignored, n))
        share = factor / sum
        inside = label_here >= 0 and label_here < n and label_here != ignored
        first = (cuda.blockIdx.x - row * parts) * span
        end = min(first + span, n)
        values = cuda.local.array(held, real)
        i = first + cuda.threadIdx.x * width
        while i < end:
            for k in range(AT_ONCE):
                if i + k * step < end:
                    vector = load(x, row * n + i + k * step)
                    for j in range(width):
                        values[k * width + j] = vector[j]
            for k in range(AT_ONCE):
                at = i + k * step
                if at < end:
                    for j in range(width):
                        value = exp(values[k * width + j] - top) * share
                        value -= factor if at + j == label_here else 0.0
                        values[k * width + j] = value if inside else factor
                    store(gx, row * n + at, gathered(values, k * width))
            i += AT_ONCE * step

    return cross_entropy_grad


@cache
def cross_entropy_grad_columns(factor_of: Callable):
    def cross_entropy_grad(
        x, label, gy, gy_step, weight, weighted, mass, ignored, gx, n, inner, positions
    ):
        p = cuda.grid(1)
        if p < positions:
            outer = p // inner
            start = outer * n * inner + p - outer * inner
            label_here = np.int64(label[p])
            factor = real(factor_of(label_here, p, gy, gy_step, weight, weighted, mass, ignored, n))
            inside = label_here >= 0 and label_here < n and label_here != ignored
            top, sum = online_softmax(x, start, n, inner)
            share = factor / sum
            for k in range(n):
                i = start + k * inner
                value = exp(x[i] - top) * share - (factor if k == label_here else 0.0)
                gx[i] = value if inside else factor

    return cross_entropy_grad


@cache
def nll_grad_elements(factor_of: Callable):
    """A thread an element."""

    def nll_grad(label, gy, gy_step, weight, weighted, mass, ignored, gx, n, inner, size):
        i = cuda.grid(1)
        if i < size:
            row = div32(i, inner)
            k = mod32(row, n)
            p = div32(row, n) * inner + i - row * inner
            label_here = np.int64(label[p])
            value = 0.0
            outside = label_here < 0 or label_here >= n
            if outside or k == label_here:
                factor = factor_of(
                    label_here, p, gy, gy_step, weight, weighted, mass, ignored, n
                )  # fmt: skip
                value = real(factor if outside or label_here == ignored else -factor)
            gx[i] = value

    return nll_grad
