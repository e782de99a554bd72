"""The k best of long rows on CUDA, in order.

The key of the k-th one is found digit by digit, the highest first (Alabi, Blanchard, Gordon and
Steinbach, 2012): blocks count, each in a part of a row, the digits of the elements that begin like
it; another launch finds the digit at which there are k. What is before that key, and as many equal
ones as are missing, those with the lowest places, are written in the order of places, and sorted.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from opstep.kernels.move.cuda_copying import reinterpreted
from opstep.kernels.pick.cuda_keys import first_of, into_results, itself, keys_of
from opstep.kernels.pick.cuda_sort import (
    CHUNK,
    COPIES,
    DIGITS,
    ITEMS,
    LANES,
    THREADS,
    TOP,
    WARPS,
    Into,
    Rows,
    reader,
    sort_rows,
    sum_before,
)
from opstep.runtime.device.builtin import atomic_add
from opstep.runtime.device.cuda.compiling.names import cuda, digit_of, pointer_to
from opstep.runtime.device.launch import Arg, Grid, Scratch
from opstep.runtime.ir.types import i32, i64

BLOCKS = 528  # about as many keep a GPU busy
BINS = COPIES * DIGITS
WIDE = 1024  # threads that add up counts of digits
SHARES = WIDE // DIGITS
AHEAD = 8  # counts that are read together
# Words of a row's state: the digits found, how many elements are missing among those that begin so,
# and the last digit.
BEGIN, LEFT, DIGIT, STATE = 0, 1, 2, 3


def best(
    x: Arg, values: Arg, indices: Arg, shape: tuple[int, int, int], k: int, descending: bool
) -> list[Grid] | None:
    """The first k of each sequence in order; None where sorting does better. `shape`: elements
    before the axis, along it, after it.
    """
    before, n, inner = shape
    keys = keys_of(x.stored, descending)
    most, kind = CHUNK[keys.carrier.itemsize], keys.carrier.numpy.type
    if n <= most or k > most:
        return None
    rows, step = before * inner, THREADS * ITEMS
    source, target = (reinterpreted(a, keys.carrier) for a in (x, values))
    parts = max(1, min(-(-BLOCKS // rows), n // (2 * step)))
    span = -(-n // (parts * step)) * step
    state, counts = Scratch(i64, rows * STATE), Scratch(i32, rows * parts * DIGITS)
    found = Scratch(i32, rows * parts * 2)
    grid, walk = rows * parts, (n, inner, parts, span)
    launches: list[Grid] = []
    for p in range(keys.carrier.itemsize):
        digits = (keys.carrier.bits - 8 * (p + 1), 0 if p else TOP)
        args = (source, state, counts, found, *walk, p, *digits)
        launches.append(Grid(count_likely(keys.of, kind, ITEMS), *args, grid=grid, block=THREADS))
        args = (state, counts, parts, k, p, digits[1])
        launches.append(Grid(find_digit, *args, grid=rows, block=WIDE))
    launches.append(Grid(tally, state, counts, found, parts, grid=grid, block=THREADS))
    best_keys, places = Scratch(keys.carrier, rows * k), Scratch(i32, rows * k)
    args = (source, state, found, best_keys, places, *walk, k)
    launches.append(Grid(collect(keys.of, kind, ITEMS), *args, grid=grid, block=THREADS))
    pairs = Rows(best_keys, itself, keys.carrier, x.stored.bits, rows, k, held=places)
    into = Into(into_results(keys, True), target, indices, k, inner, source, n)
    return [*launches, *sort_rows(pairs, into)]


# --- kernels --------------------------------------------------------------------------------------


def add_better(state, counts, found, row, first, sums):
    """Adds to what a part has of better elements those whose last digit is before that found."""
    thread = cuda.threadIdx.x
    digit = state[row * STATE + DIGIT]
    if thread == 0:
        sums[0] = 0
    cuda.syncthreads()
    count = np.int64(counts[first * DIGITS + thread])
    if thread < digit and count > 0:
        atomic_add(sums, 0, count)
    cuda.syncthreads()
    if thread == 0:
        found[2 * first] = found[2 * first] + sums[0]
    if thread == digit:
        found[2 * first + 1] = count


@cache
def count_likely(key: Callable, kind: Any, items: int) -> Callable:
    """A block a part of a row."""

    read, size = reader(key, kind, items, THREADS), THREADS * items

    def count_likely(x, state, counts, found, n, inner, parts, span, p, shift, flip):
        bins = pointer_to(cuda.shared.array(BINS, np.int32))
        sums = pointer_to(cuda.shared.array(1, np.int32))
        thread = cuda.threadIdx.x
        copy = (thread // LANES) % COPIES * DIGITS
        first = np.int64(cuda.blockIdx.x)
        row = first // parts
        part = first - row * parts
        begin = np.int64(0)
        if p > 0:
            begin = state[row * STATE + BEGIN]
            add_better(state, counts, found, row, first, sums)
        elif thread == 0:
            found[2 * first] = 0
        for c in range(COPIES):
            bins[c * DIGITS + thread] = 0
        cuda.syncthreads()
        start = first_of(row, n, inner)
        keys = cuda.local.array(items, kind)
        end = min((part + 1) * span, n)
        for base in range(part * span, end, size):
            first_one = base + thread
            read(x, start, first_one, inner, end, base + size <= end, keys)
            for j in range(items):
                own = np.int64(keys[j])
                likely = p == 0 or own >> (shift + 8) == begin
                if likely and first_one + j * THREADS < end:
                    atomic_add(bins, copy + digit_of(own, shift, flip), 1)
        cuda.syncthreads()
        total = 0
        for c in range(COPIES):
            total += bins[c * DIGITS + thread]
        counts[first * DIGITS + thread] = total

    return count_likely


def find_digit(state, counts, parts, k, p, flip):
    """A block a row: the digit of the k-th element."""
    shares = pointer_to(cuda.shared.array(WIDE, np.int32))
    ends = pointer_to(cuda.shared.array(LANES, np.int32))
    thread = cuda.threadIdx.x
    digit, share = thread % DIGITS, thread // DIGITS
    row = np.int64(cuda.blockIdx.x)
    left = k if p == 0 else state[row * STATE + LEFT]
    begin = np.int64(0) if p == 0 else state[row * STATE + BEGIN]
    own = np.int64(0)
    for base in range(share, parts, SHARES * AHEAD):
        for j in range(AHEAD):
            part = base + j * SHARES
            own += counts[(row * parts + part) * DIGITS + digit] if part < parts else 0
    shares[thread] = own
    cuda.syncthreads()
    own = np.int64(0)
    if share == 0:
        for s in range(SHARES):
            own += shares[s * DIGITS + digit]
    before = np.int64(sum_before(own, ends))
    if share == 0 and before < left and left <= before + own:
        lowest = digit ^ flip
        if p == 0:  # the digit with the sign
            lowest = lowest - 2 * (lowest & flip)
        state[row * STATE + BEGIN] = begin * DIGITS + lowest
        state[row * STATE + LEFT] = left - before
        state[row * STATE + DIGIT] = digit


def tally(state, counts, found, parts):
    """A block a part: what it has of better elements, and of those equal to the k-th one."""
    sums = pointer_to(cuda.shared.array(1, np.int32))
    first = np.int64(cuda.blockIdx.x)
    add_better(state, counts, found, first // parts, first, sums)


@cache
def collect(key: Callable, kind: Any, items: int) -> Callable:
    """A block a part: writes the best, in the order of their places."""
    read, size = reader(key, kind, items, THREADS), THREADS * items

    def collect(x, state, found, best_keys, places, n, inner, parts, span, k):
        sums = pointer_to(cuda.shared.array(2, np.int32))
        ends = pointer_to(cuda.shared.array(WARPS, np.int32))
        thread = cuda.threadIdx.x
        first = np.int64(cuda.blockIdx.x)
        row = first // parts
        part = first - row * parts
        if thread < 2:
            sums[thread] = 0
        cuda.syncthreads()
        for other in range(thread, part, THREADS):
            atomic_add(sums, 0, np.int64(found[2 * (row * parts + other)]))
            atomic_add(sums, 1, np.int64(found[2 * (row * parts + other) + 1]))
        cuda.syncthreads()
        better, equal = np.int64(sums[0]), np.int64(sums[1])
        last, left = state[row * STATE + BEGIN], state[row * STATE + LEFT]
        start = first_of(row, n, inner)
        keys = cuda.local.array(items, kind)
        end = min((part + 1) * span, n)
        for base in range(part * span, end, size):
            wanted = 0
            first_one = base + thread
            read(x, start, first_one, inner, end, base + size <= end, keys)
            for j in range(items):
                own_key = np.int64(keys[j])
                among_best = own_key < last or (own_key == last and equal < left)
                if among_best and first_one + j * THREADS < end:
                    wanted = 1
            if cuda.syncthreads_or(wanted):  # seldom: so elements are read again, not kept
                for line in range(base, min(base + size, end), THREADS):
                    i = line + thread
                    own_key = key(np.int64(x[start + i * inner])) if i < end else np.int64(0)
                    is_better = 1 if i < end and own_key < last else 0
                    is_equal = 1 if i < end and own_key == last else 0
                    own = is_better + (is_equal << 16)
                    before = np.int64(sum_before(own, ends))
                    at = better + (before & 0xFFFF)
                    among = equal + (before >> 16)
                    if is_better == 1 or (is_equal == 1 and among < left):
                        into = row * k + (at if is_better == 1 else k - left + among)
                        best_keys[into] = own_key
                        places[into] = i
                    if thread == THREADS - 1:
                        sums[0] = before + own & 0xFFFF
                        sums[1] = before + own >> 16
                    cuda.syncthreads()
                    better += sums[0]
                    equal += sums[1]

    return collect
