"""Losses on CUDA: sums of pairs' losses in one pass, classifiers' losses and their gradients.

Sums are in f64: of a thread, of a block, then of all blocks in a fixed order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from math import gcd

import numpy as np

from opstep.kernels.math.fastmath import exp
from opstep.kernels.rows.cuda_moments import THREADS, block_sum
from opstep.kernels.rows.cuda_rows import Team, exp_for, rows_grid, steps_for, team_for
from opstep.runtime.device.builtin import offset
from opstep.runtime.device.cuda.compiling.names import cuda, div32, fmax, mod32, real
from opstep.runtime.device.launch import Arg, Grid, Scratch
from opstep.runtime.device.source import Intrinsic, pinned
from opstep.runtime.ir.types import f64

AT_ONCE = 4  # vectors of each operand that a thread reads before it adds
BLOCKS = 1024  # that sum pairs
FEW = 4096  # sums that one block adds up
CLASSES = 8  # that a thread reads at once, where they do not lie side by side

Positions = tuple[int, int, int]  # before the classes, classes, behind them


# --- sums of what blocks left ---------------------------------------------------------------------


class Partials:
    """Two sums of each of `count` blocks: [4, count], of which two rows are used."""

    def __init__(self, count: int):
        self.count = count
        self.sums = Scratch(f64, 4 * count)

    def finish(self, kernel: Callable, *args) -> list[Grid]:
        """Launches that end in ``kernel(sums, count, *args)``, run by one block."""
        if self.count <= FEW:
            return [Grid(kernel, self.sums, self.count, *args, grid=1, block=THREADS)]
        fewer = Partials(-(-self.count // (THREADS * AT_ONCE)))
        sums = (self.sums, self.count, fewer.sums)
        first = Grid(fold_partials, *sums, grid=fewer.count, block=THREADS)
        return [first, *fewer.finish(kernel, *args)]


@pinned("f64")
def fold_partials(sums, count, into):
    a, b = 0.0, 0.0
    start = cuda.blockIdx.x * THREADS * AT_ONCE + cuda.threadIdx.x
    for k in range(AT_ONCE):
        i = start + k * THREADS
        if i < count:
            a += sums[i]
            b += sums[count + i]
    block_sum(a, b, 0.0, 0.0, into, cuda.blockIdx.x, cuda.gridDim.x)


@pinned("f64")
def both(sums, count):
    """The two sums of all blocks, in the first thread."""
    a, b = 0.0, 0.0
    for i in range(cuda.threadIdx.x, count, THREADS):
        a += sums[i]
        b += sums[count + i]
    found = cuda.shared.array(4, np.float64)
    block_sum(a, b, 0.0, 0.0, found, 0, 1)
    cuda.syncthreads()
    return found[0], found[1]


def write_share(sums, count, y, divisor):
    """y is the first sum over a number, or over the second sum where that is 0."""
    a, b = both(sums, count)
    if cuda.threadIdx.x == 0:
        y[0] = a / b if divisor == 0 else a / np.float64(divisor)


def write_inverse(sums, count, mass):
    _, b = both(sums, count)
    if cuda.threadIdx.x == 0:
        mass[0] = np.float64(1.0) / b


# --- losses of pairs ------------------------------------------------------------------------------


def pair_sum(
    f: Callable, name: str, x: Arg, target: Arg, y: Arg, numbers: Sequence[float], divisor: int
) -> list[Grid]:
    """y = the sum of f(x, target, *numbers) over all pairs, divided."""
    width = gcd(x.size, 16 // max(x.stored.itemsize, target.stored.itemsize))
    vectors = x.size // width
    blocks = min(BLOCKS, -(-vectors // (THREADS * AT_ONCE)))
    partial = Partials(blocks)
    args = (x, target, partial.sums, *numbers, vectors)
    first = Grid(pair_sums(f, name, len(numbers), width), *args, grid=blocks, block=THREADS)
    return [first, *partial.finish(write_share, y, divisor)]


@cache
def pair_sums(f: Callable, name: str, numbers: int, width: int) -> Callable:
    load, held = Intrinsic("load", width), width * AT_ONCE

    def fetch(x, target, first, vectors, values, targets):
        """How many elements there are."""
        valid = 0
        for k in range(AT_ONCE):
            v = first + k * THREADS
            if v < vectors:
                vector, other = load(x, v * width), load(target, v * width)
                for j in range(width):
                    values[k * width + j] = vector[j]
                    targets[k * width + j] = other[j]
                valid += width
        return valid

    def plain(x, target, partial, vectors):
        values, targets = cuda.local.array(held, real), cuda.local.array(held, real)
        total = np.float64(0.0)
        step = cuda.gridDim.x * THREADS * AT_ONCE
        first = np.int64(cuda.blockIdx.x) * THREADS * AT_ONCE + cuda.threadIdx.x
        while first < vectors:
            valid = fetch(x, target, first, vectors, values, targets)
            for k in range(held):
                if k < valid:
                    total += np.float64(f(values[k], targets[k]))
            first += step
        none = np.float64(0.0)
        block_sum(total, none, none, none, partial, cuda.blockIdx.x, cuda.gridDim.x)

    def with_one(x, target, partial, p, vectors):
        values, targets = cuda.local.array(held, real), cuda.local.array(held, real)
        total = np.float64(0.0)
        step = cuda.gridDim.x * THREADS * AT_ONCE
        first = np.int64(cuda.blockIdx.x) * THREADS * AT_ONCE + cuda.threadIdx.x
        while first < vectors:
            valid = fetch(x, target, first, vectors, values, targets)
            for k in range(held):
                if k < valid:
                    total += np.float64(f(values[k], targets[k], p))
            first += step
        none = np.float64(0.0)
        block_sum(total, none, none, none, partial, cuda.blockIdx.x, cuda.gridDim.x)

    kernel = (plain, with_one)[numbers]
    kernel.__name__ = f"{name}_sum"
    return kernel


# --- losses of classifiers ------------------------------------------------------------------------


def label_loss(
    scores: bool, x: Arg, label: Arg, weight: Arg | None, y: Arg, ignored: int,
    positions: Positions, reduction: str,
) -> list[Grid]:  # fmt: skip
    """`scores`: x is not normalised."""
    before, n, inner = positions
    args = (x, label, weight or x, weight is not None, ignored, reduction == "none", y)
    team = team_for(n, [x]) if scores and inner == 1 else None
    if team is not None:
        partial = Partials(team.grid(before))
        first = rows_grid(cross_entropy_rows(team), team, before, *args, partial.sums, n)
    else:
        count = before * inner
        partial = Partials(-(-count // THREADS))
        kernel = label_columns(scores)
        args = (*args, partial.sums, n, inner, count)
        first = Grid(kernel, *args, grid=partial.count, block=THREADS)
    if reduction == "none":
        return [first]
    return [first, *partial.finish(write_share, y, 0 if reduction == "mean" else 1)]


def inverse_mass(
    label: Arg, weight: Arg | None, ignored: int, n: int, x: Arg
) -> tuple[list[Grid], Scratch]:
    """(launches, where they leave 1 / the sum of the weights that count)."""
    mass = Scratch(f64, 1)
    partial = Partials(-(-label.size // (THREADS * AT_ONCE)))
    args = (label, weight or x, weight is not None, ignored, n, label.size, partial.sums)
    first = Grid(label_mass, *args, grid=partial.count, block=THREADS)
    return [first, *partial.finish(write_inverse, mass)], mass


def cross_entropy_grad(
    x: Arg, label: Arg, gy: Arg, gy_step: int, weight: Arg | None, mass: Scratch, ignored: int,
    gx: Arg, positions: Positions, factor_of: Callable,
) -> Grid:  # fmt: skip
    before, n, inner = positions
    args = (x, label, gy, gy_step, weight or x, weight is not None, mass, ignored, gx)
    team = team_for(n, [x, gx]) if inner == 1 else None
    if team is not None:
        kernel = cross_entropy_grad_rows(team, factor_of)
        return rows_grid(kernel, team, before, *args, n)
    count = before * inner
    kernel, args = cross_entropy_grad_columns(factor_of), (*args, n, inner, count)
    return Grid(kernel, *args, grid=-(-count // THREADS), block=THREADS)


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


def online_softmax(x, start, n, inner):
    """(largest, sum of exp(x - largest)) of n elements `inner` apart, read once, a few at a time.
    The sum is NaN where the largest is no number.
    """
    values = cuda.local.array(CLASSES, real)
    top = -1e999
    base = -1e999
    sum = 0.0
    for first in range(0, n, CLASSES):
        for k in range(CLASSES):
            values[k] = x[start + (first + k) * inner] if first + k < n else -1e999
        for k in range(CLASSES):
            top = fmax(top, values[k])
        before = base
        base = top if top > -1e999 else 0.0  # nothing can be subtracted from -inf
        sum *= exp(before - base)
        for k in range(CLASSES):
            sum += exp(values[k] - base)
    return top, sum + (top - top)


def label_mass(label, weight, weighted, ignored, n, count, partial):
    total = np.float64(0.0)
    start = cuda.blockIdx.x * THREADS * AT_ONCE + cuda.threadIdx.x
    for j in range(AT_ONCE):
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
