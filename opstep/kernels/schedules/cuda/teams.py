"""Rows that stay in registers: how threads share one, read it, sum over it and write it.

A row of n neighbouring elements belongs to a *team*: 1 to 32 neighbouring threads of a warp, or a
whole block of up to 1024. Each thread holds a few vectors, a team's width apart, so a row is read
once and written once whatever is computed in between. Longer rows are taken in several launches:
see `parts`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import gcd
from typing import Any, NamedTuple

import numpy as np

from opstep.kernels.pointwise.cuda_neighbours import GATHERED
from opstep.runtime.device.cuda.compiling.names import cuda, real, shuffle_xor
from opstep.runtime.device.launch import Arg, Grid
from opstep.runtime.device.source import Intrinsic

BLOCK = 128  # threads, where several teams share a block
WARP = 32
HELD = 32  # elements that a thread holds at most
MOST_THREADS = 1024
SLOTS = 4
SHARED = SLOTS * WARP  # numbers


class Team(NamedTuple):
    """A way of sharing rows out. `width`: elements of a vector; `vectors`: of each thread;
    `threads`: of a team, a power of 2; `teams`: of a block; `full`: no thread is left without.
    """

    width: int
    vectors: int
    threads: int
    teams: int
    full: bool

    def grid(self, rows: int) -> int:
        return -(-rows // self.teams)

    @property
    def block(self) -> int:
        return self.threads * self.teams


def team_for(
    n: int, args: list[Arg], arrays: int = 1, held: int | None = None, vector: int = 0
) -> Team | None:
    """For rows of n > 0 elements of these operands, `arrays` of which each thread holds, so many
    elements of each at most; None where they are too long. Vectors divide `vector`, if given.
    """
    width = gcd(n, vector, 16 // max(2, *(a.stored.itemsize for a in args)))
    vectors = -(-n // width)
    wide = max(4, *(a.dtype.itemsize for a in args)) // 4
    most = max(1, (held or HELD) // (width * wide))
    threads = 1
    while threads * most < vectors:
        threads *= 2
    if threads > MOST_THREADS // arrays:
        return None
    # a few threads more, where they still fit a warp, have more reads under way
    while threads < WARP and vectors > 2 * threads:
        threads *= 2
    each = -(-vectors // threads)
    teams = max(1, BLOCK // threads) if threads <= WARP else 1
    return Team(width, each, threads, teams, each * threads == vectors)


def rows_grid(kernel: Callable, team: Team, rows: int, *args) -> Grid:
    """A launch of a kernel that takes ``(*args, n, rows)``."""
    return Grid(kernel, *args, rows, grid=team.grid(rows), block=team.block)


class Steps(NamedTuple):
    """Functions that kernels of rows call.

    ``locate() -> (row, thread of the team)``; ``fetch(x, n, thread, values, missing)`` reads a row
    that starts at x into a local array, `missing` where there is nothing; ``put(y, n, thread,
    values)`` writes it; ``in_row(n, thread, k)`` says whether element k of a thread exists.
    """

    locate: Callable
    fetch: Callable
    put: Callable
    in_row: Callable


@cache
def steps_for(team: Team) -> Steps:
    width, vectors, threads, teams, full = team
    load, store = Intrinsic("load", width), Intrinsic("store", width)
    gathered = GATHERED[width]

    def locate():
        thread = cuda.threadIdx.x
        return cuda.blockIdx.x * teams + thread // threads, np.int64(thread % threads)

    def fetch(x, n, thread, values, missing):
        for k in range(vectors):
            i = (k * threads + thread) * width
            if full or i < n:
                vector = load(x, i)
                for j in range(width):
                    values[k * width + j] = vector[j]
            else:
                for j in range(width):
                    values[k * width + j] = missing

    def put(y, n, thread, values):
        for k in range(vectors):
            i = (k * threads + thread) * width
            if full or i < n:
                store(y, i, gathered(values, k * width))

    def in_row(n, thread, k):
        return full or (k // width * threads + thread) * width < n

    return Steps(locate, fetch, put, in_row)


def plus(a, b):
    return a + b


@cache
def reducers(combine: Callable, threads: int, dtype: Any = real) -> tuple[Callable, Callable]:
    """(of one number, of two at once) of a team: ``combined(value, slot)``, ``both(a, b, slot)``
    give the same bits in all of its threads. What is read of a slot is so until the next call's
    barrier; two numbers have two slots.
    """
    warps = threads // WARP
    inner = min(threads, WARP)

    def across(value, lanes):
        step = lanes // 2
        while step > 0:
            value = combine(value, shuffle_xor(value, step))
            step //= 2
        return value

    def within_warp(value, slot):
        return across(value, inner)

    def two_within_warp(a, b, slot):
        return across(a, inner), across(b, inner)

    def within_block(value, slot):
        parts = cuda.shared.array(SHARED, dtype)
        value = across(value, WARP)
        thread = cuda.threadIdx.x
        if thread % WARP == 0:
            parts[slot * WARP + thread // WARP] = value
        cuda.syncthreads()
        return across(parts[slot * WARP + thread % warps], warps)

    def two_within_block(a, b, slot):
        parts = cuda.shared.array(SHARED, dtype)
        a, b = across(a, WARP), across(b, WARP)
        thread = cuda.threadIdx.x
        if thread % WARP == 0:
            parts[slot * WARP + thread // WARP] = a
            parts[(slot + 1) * WARP + thread // WARP] = b
        cuda.syncthreads()
        a, b = parts[slot * WARP + thread % warps], parts[(slot + 1) * WARP + thread % warps]
        return across(a, warps), across(b, warps)

    return (within_block, two_within_block) if warps > 1 else (within_warp, two_within_warp)
