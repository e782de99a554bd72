"""More statistics of a tensor, by choice: exact quantiles, counts by sign and
magnitude, figures of each channel.

The ops stand in no program: a recording launches them after the statistics of a tensor. Each
leaves i64 words where `enabled` is not 0. Elements are looked at as *keys*, integers of their
order: a float's bits without the sign, negated where it has one, so -0.0 is 0.0; integers as they
are. The key of a magnitude is the key's magnitude. NaNs and infinities are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from opstep.kernels.rules.axes import around
from opstep.kernels.statistics import cuda_details as gpu
from opstep.kernels.statistics.keys import as_sort_keys, key_of
from opstep.runtime.device.builtin import float_to_bits, offset
from opstep.runtime.device.flagging import INFINITY
from opstep.runtime.device.launch import Launch, Scratch
from opstep.runtime.ir.op import AttrSpec, OperandSpec, Traits
from opstep.runtime.ir.types import DType, TensorType, i32, i64, u8
from opstep.runtime.plan.internal import PlanOp
from opstep.runtime.statistics import BINS, LOWEST

PERCENTS = (1, 50, 99)
TARGETS = 4 * len(PERCENTS)  # of each the elements below and above it, of x and of |x|
SIDE = TARGETS // 2
QUANTILES = 1 + TARGETS  # words: finite elements, keys; those of |x| are negated
COUNTS = 2 * BINS  # words: negative ones by floor(log2(|x|)), then positive ones
CHANNEL = 4  # words of each: finite elements, least key, greatest key, zeros

BITS = 11  # of a key that are looked at together
DIGITS = 1 << BITS
LEAST = -(1 << 63)
ROOM = TARGETS * DIGITS  # counts of a part
PART = 1 << 16  # elements worth a lane of its own
PARTS = 64  # at most
STRETCH = 4096  # elements of a unit that counts, or looks for extremes
_X = OperandSpec("x", "T", "T", False, False)
_ENABLED = OperandSpec("enabled", "I", "I", False, False)


class Detail(PlanOp):
    """Words about `x`, taken where `enabled` is not 0."""

    operands = (_X, _ENABLED)
    results = ("words",)
    traits = Traits(moves=True)


class quantiles(Detail):
    """i64[QUANTILES]: the elements between which `PERCENTS` of x and of |x| lie."""

    name = "quantiles"

    def infer(x, enabled):
        return TensorType(i64, (QUANTILES,))

    def cpu(x, enabled, words):
        parts = max(1, min(PARTS, -(-x.size // PART)))
        state, tables = Scratch(i64, STATE), Scratch(i32, parts * ROOM)
        marks = Scratch(u8, 2 * DIGITS)
        top = (-(-_width(x.dtype) // BITS) - 1) * BITS
        made = []
        for shift in range(top, -1, -BITS):
            count = digit_counter(x.dtype, shift == top)
            args = (enabled, state, marks, tables, x.size, -(-x.size // parts), shift)
            choice = (enabled, state, marks, tables, words, PERCENTS, parts, shift, shift == top)
            made.append(Launch(count, as_sort_keys(x), *args, units=parts, grain=1))
            made.append(Launch(chooser(x.dtype), *choice, units=1))
        return made

    def cuda(x, enabled, words):
        if x.size >= 1 << 31:  # a place would not fit 32 bits
            return quantiles.cpu(x, enabled, words)
        return gpu.quantiles(x, enabled, words, PERCENTS, INFINITY.get(x.dtype.name, 0))


class signed(Detail):
    """i64[COUNTS]: how many elements have which sign and magnitude."""

    name = "signed"

    def infer(x, enabled):
        return TensorType(i64, (COUNTS,))

    def cpu(x, enabled, words):
        units = -(-x.size // STRETCH)
        counts = Scratch(i32, max(1, units) * COUNTS)
        taken = Launch(
            sign_counter(x.dtype), as_sort_keys(x), enabled, counts, x.size, units=units, grain=1
        )
        return [taken, Launch(add_counts, enabled, counts, words, units, units=COUNTS)]


class channels(Detail):
    """i64[channels, CHANNEL]: figures of each of the places along `axis`, from 0."""

    name = "channels"
    attrs = (AttrSpec("axis", "int", True, None),)

    def infer(x, enabled, *, axis):
        return TensorType(i64, (x.shape[axis], CHANNEL))

    def cpu(x, enabled, words, *, axis):
        before, n, inner = around(x.shape, axis)
        parts = -(-before * inner // STRETCH)
        figures = Scratch(i64, max(1, parts) * n * CHANNEL)
        shape = (before * inner, n, inner)
        kernel = extremes_finder(x.dtype)
        taken = Launch(kernel, as_sort_keys(x), enabled, figures, *shape, units=parts * n, grain=8)
        return [taken, Launch(join_extremes, enabled, figures, words, parts, n, units=n)]


def _width(dtype: DType) -> int:
    """Bits of a key, with its sign."""
    return dtype.bits + (dtype.kind in "ub")


@cache
def is_finite(dtype: DType) -> Callable:
    floating, infinity = dtype.is_float, INFINITY.get(dtype.name, 0)

    def finite(key):
        return not floating or -infinity < key < infinity

    return finite


# --- quantiles on the CPU: the elements wanted are chosen digit by digit, the highest first -------
# `tables` count the digits below each of the values that are still possible, at most `SIDE` of x
# and as many of |x|; `marks` are the highest digits of these.

M, SEEN = 0, 1  # words of `state`: finite elements; by side, how many values are possible,
POSSIBLE = 3  # these,
SLOT, RANK, VALUE = (POSSIBLE + k * TARGETS for k in (1, 2, 3))  # and of each target which it is,
STATE = POSSIBLE + 4 * TARGETS  # how many elements of that are before it, and its digits so far


@cache
def digit_counter(dtype: DType, top: bool):
    """Counts digits of the elements of a part: of all, or of those that may still be wanted."""
    key, finite = key_of(dtype), is_finite(dtype)
    lift = lifted(dtype)
    highest = (-(-_width(dtype) // BITS) - 1) * BITS

    def add(tables, state, side, value, shift):
        for s in range(state[SEEN + side]):
            if value >> (shift + BITS) == state[POSSIBLE + side * SIDE + s] >> (shift + BITS):
                tables[(side * SIDE + s) * DIGITS + (value >> shift & DIGITS - 1)] += 1

    def count_digits(x, enabled, state, marks, tables, size, part, shift, lo, hi):
        if enabled[0] == 0:
            return
        for unit in range(lo, hi):
            counts = offset(tables, unit * ROOM)
            for side in range(2):
                for k in range(DIGITS * (1 if top else state[SEEN + side])):
                    counts[side * SIDE * DIGITS + k] = 0
            for i in range(unit * part, min((unit + 1) * part, size)):
                k = key(x[i])
                if not finite(k):
                    continue
                a, b = lift(k), size_of(k)
                if top:
                    counts[a >> shift & DIGITS - 1] += 1
                    counts[SIDE * DIGITS + (b >> shift & DIGITS - 1)] += 1
                    continue
                if marks[a >> highest & DIGITS - 1] != 0:
                    add(counts, state, 0, a, shift)
                if marks[DIGITS + (b >> highest & DIGITS - 1)] != 0:
                    add(counts, state, 1, b, shift)

    return count_digits


@cache
def lifted(dtype: DType, back: bool = False) -> Callable:
    """Makes the least key 0, seen without a sign; or undoes that."""
    width = _width(dtype)
    wide, half = width == 64, 1 << min(width, 63) - 1
    half = -half if back else half

    def lift(key):
        return key ^ LEAST if wide else key + half

    return lift


def size_of(key):
    """That of the magnitude; the least i64 counts as the one above it, whose f64 is the same."""
    return abs(max(key, LEAST + 1))


@cache
def chooser(dtype: DType):
    """Adds up what the parts have counted, and chooses the next digit of each target."""
    lower = lifted(dtype, back=True)

    def choose(enabled, state, marks, tables, words, percents, parts, shift, top, lo, hi):
        if enabled[0] == 0:
            return
        for part in range(1, parts):
            for side in range(2):
                first = side * SIDE * DIGITS
                for k in range(first, first + DIGITS * (1 if top != 0 else state[SEEN + side])):
                    tables[k] += tables[part * ROOM + k]
        if top != 0:
            begin(state, marks, tables, percents)
        words[0] = state[M]
        if state[M] == 0:
            for t in range(TARGETS):
                words[1 + t] = 0
            return
        for t in range(TARGETS):
            side = t // SIDE
            table = offset(tables, (side * SIDE + state[SLOT + t]) * DIGITS)
            digit, rank = 0, state[RANK + t]
            while rank >= table[digit]:
                rank -= table[digit]
                digit += 1
            state[RANK + t] = rank
            state[VALUE + t] |= digit << shift
            if top != 0:
                marks[side * DIGITS + digit] = 1
        note_possible(state)
        for t in range(TARGETS):
            value = state[VALUE + t]
            words[1 + t] = lower(value) if t < SIDE else -value

    return choose


def begin(state, marks, tables, percents):
    """All elements are possible; which of them in order is wanted."""
    count = 0
    for k in range(DIGITS):
        count += tables[k]
        marks[k] = 0
        marks[DIGITS + k] = 0
    state[M] = count
    state[SEEN] = 0
    state[SEEN + 1] = 0
    for t in range(TARGETS):
        state[SLOT + t] = 0
        state[VALUE + t] = 0
        target = t % SIDE  # an element below a quantile, or the next one
        below = percents[target // 2] * (count - 1) // 100
        state[RANK + t] = min(below + target % 2, count - 1)


def note_possible(state):
    """The values that the targets may have, each once: their ranks go up, so equal ones are
    neighbours.
    """
    for t in range(TARGETS):
        side = t // SIDE
        first = t % SIDE == 0
        if first or state[VALUE + t] != state[VALUE + t - 1]:
            slot = 0 if first else state[SLOT + t - 1] + 1
            state[POSSIBLE + side * SIDE + slot] = state[VALUE + t]
            state[SEEN + side] = slot + 1
            state[SLOT + t] = slot
        else:
            state[SLOT + t] = state[SLOT + t - 1]


# --- counts by sign -------------------------------------------------------------------------------


@cache
def sign_counter(dtype: DType):
    """Counts the elements of each unit."""
    key, finite = key_of(dtype), is_finite(dtype)
    fraction = {"f64": 52, "f32": 23, "f16": 10, "bf16": 7}.get(dtype.name, 0)
    bias = (1 << dtype.bits - 2 - fraction) - 1 if dtype.is_float else 0
    whole = not dtype.is_float
    shrunk = 0 if whole else 1 - bias - fraction  # what a subnormal's bits count is 2**shrunk

    def exponent(size):
        if whole or size >> fraction == 0:
            return (float_to_bits(np.float64(size)) >> 52) - 1023 + shrunk
        return (size >> fraction) - bias

    def count_signs(x, enabled, counts, size, lo, hi):
        if enabled[0] == 0:
            return
        for unit in range(lo, hi):
            own = offset(counts, unit * COUNTS)
            for k in range(COUNTS):
                own[k] = 0
            for i in range(unit * STRETCH, min((unit + 1) * STRETCH, size)):
                k = key(x[i])
                if k != 0 and finite(k):
                    place = max(0, min(exponent(size_of(k)) - LOWEST, BINS - 1))
                    own[place if k < 0 else BINS + place] += 1

    return count_signs


def add_counts(enabled, counts, words, units, lo, hi):
    if enabled[0] == 0:
        return
    for k in range(lo, hi):
        total = 0
        for unit in range(units):
            total += counts[unit * COUNTS + k]
        words[k] = total


# --- channels: units are pieces of one, neighbouring units pieces of neighbouring channels --------


@cache
def extremes_finder(dtype: DType):
    """Looks at `STRETCH` elements of a channel."""
    key, finite = key_of(dtype), is_finite(dtype)

    def find_extremes(x, enabled, figures, size, n, inner, lo, hi):
        if enabled[0] == 0:
            return
        for unit in range(lo, hi):
            part = unit // n
            channel = unit - part * n
            count, low, high, zeros = 0, 0, 0, 0
            for i in range(part * STRETCH, min((part + 1) * STRETCH, size)):
                before = i // inner
                k = key(x[(before * n + channel) * inner + i - before * inner])
                if finite(k):
                    low = k if count == 0 else min(low, k)
                    high = k if count == 0 else max(high, k)
                    count += 1
                    zeros += k == 0
            own = offset(figures, unit * CHANNEL)
            own[0], own[1], own[2], own[3] = count, low, high, zeros

    return find_extremes


def join_extremes(enabled, figures, words, parts, n, lo, hi):
    if enabled[0] == 0:
        return
    for channel in range(lo, hi):
        count, low, high, zeros = 0, 0, 0, 0
        for part in range(parts):
            own = offset(figures, (part * n + channel) * CHANNEL)
            if own[0] > 0:
                low = own[1] if count == 0 else min(low, own[1])
                high = own[2] if count == 0 else max(high, own[2])
                count += own[0]
                zeros += own[3]
        into = offset(words, channel * CHANNEL)
        into[0], into[1], into[2], into[3] = count, low, high, zeros
