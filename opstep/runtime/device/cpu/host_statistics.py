"""Statistics of a tensor by NumPy, for the first few tensors: the same bits as by the compiled
kernels (`statistics`), without the time that these take to be compiled.

Blocks and units are those of the kernels, sums have their order (`vectors._fixed`), and squares are
added with one rounding. Where f64 would not hold what that takes there is no answer.
"""

from __future__ import annotations

import numpy as np

from opstep.runtime.device.cpu.blocks import DOUBLE, Width, width_of
from opstep.runtime.device.cpu.statistics import (
    BLOCK,
    HALF_NORMAL,
    LARGEST_EXPONENT,
    LEAST_EXPONENT,
    UNIT,
)
from opstep.runtime.device.payload import payload
from opstep.runtime.ir.types import DType, dtype_of, f16
from opstep.runtime.statistics import (
    BINS,
    COUNT,
    FIRST_BIN,
    LOWEST,
    M2,
    MAX,
    MEAN,
    MIN,
    NAN,
    NEGINF,
    POSINF,
    SUBNORMAL,
    SUMSQ,
    UNWRITTEN,
    WORDS,
    ZERO,
)

MOST = 1 << 20  # elements; of more the kernels are quicker even if they are compiled first
_TENSOR = 1 << 10  # elements that take as long as what each tensor takes beside its own
_RENT = 1 << 22  # elements: as long as the kernels take to be compiled
_LANES = 32  # of a sum: 4 vectors of 8
_SPLIT = 2.0**27 + 1


class Rent:
    """The time that this process has spent on statistics without a kernel, in elements."""

    paid = 0

    @classmethod
    def exceeds_a_kernel(cls, array: np.ndarray) -> bool:
        """Whether a kernel would have cost less, with this array: whoever looks at a few small
        tensors waits for no compiler.
        """
        cls.paid += array.size + _TENSOR
        return cls.paid > _RENT


def statistics_words(array: np.ndarray, filled: bool) -> np.ndarray | None:
    """The record of an array (see `runtime.statistics`); None where only the kernels can tell."""
    if array.size > MOST:
        return None
    dtype, flat = dtype_of(array.dtype), np.ascontiguousarray(array).reshape(-1)
    width = width_of(dtype)
    staged = flat.astype(width.dtype.numpy)
    bits = staged.view(width.word)
    sizes = bits & width.word(width.magnitude)
    finite = sizes < width.infinity
    exponents = (sizes[finite & (sizes != 0)] >> width.fraction).astype(np.int64) - width.bias
    extreme = (exponents < LEAST_EXPONENT) | (exponents > LARGEST_EXPONENT)
    if width is DOUBLE and extreme.any():
        return None
    words = np.zeros(WORDS, np.int64)
    _count(words, bits, sizes, width)
    words[COUNT], words[UNWRITTEN] = flat.size, -1
    if filled and dtype.is_float:
        pattern = payload(dtype)
        words[UNWRITTEN] = np.count_nonzero(flat.view(pattern.dtype) == pattern)
    if dtype.is_float:
        normal = HALF_NORMAL if dtype is f16 else 1 << width.fraction
        words[SUBNORMAL] = np.count_nonzero((sizes != 0) & (sizes < normal))
    bins = np.clip(exponents - LOWEST, 0, BINS - 1)
    words[FIRST_BIN:] = np.bincount(bins, minlength=BINS)
    if finite.any():
        words[MIN], words[MAX] = _ends(flat, bits[finite], dtype, width)
    _add_moments(words, staged, finite)
    return words


def _count(words: np.ndarray, bits: np.ndarray, sizes: np.ndarray, width: Width) -> None:
    words[NAN] = np.count_nonzero(sizes > width.infinity)
    words[POSINF] = np.count_nonzero(bits == width.infinity)
    words[NEGINF] = np.count_nonzero(bits == width.infinity - width.magnitude - 1)
    words[ZERO] = np.count_nonzero(sizes == 0)


def _ends(flat: np.ndarray, bits: np.ndarray, dtype: DType, width: Width) -> tuple[int, int]:
    """Least and greatest, -0.0 below 0.0: bits of an f64, or integers."""
    if not dtype.is_float:
        return int(flat.min()), int(flat.max())
    sign = np.dtype(width.word).itemsize * 8 - 1
    keys = bits ^ ((bits >> sign) & width.word(width.magnitude))
    ends = bits[[keys.argmin(), keys.argmax()]].view(width.dtype.numpy)
    low, high = ends.astype(np.float64).view(np.int64).tolist()
    return low, high


# --- sums -----------------------------------------------------------------------------------------


def _add_moments(words: np.ndarray, staged: np.ndarray, finite: np.ndarray) -> None:
    """Mean, squared distances and squares, block by block and unit by unit."""
    blocks, counts = _blocks(staged, finite)
    means = _sums(blocks, counts) / np.maximum(counts, 1)
    squares = _sums_of_squares(blocks, counts, means)
    total = (0, 0.0, 0.0)
    per_unit = UNIT // BLOCK
    rows = list(zip(counts.tolist(), means.tolist(), squares.tolist(), strict=True))
    for first in range(0, len(rows), per_unit):
        unit = (0, 0.0, 0.0)
        for row in rows[first : first + per_unit]:
            unit = _joined(unit, row)
        total = _joined(total, unit)
    count, mean, m2 = total
    real = words.view(np.float64)
    real[MEAN], real[M2] = mean, m2
    real[SUMSQ] = m2 + mean * mean * count


def _blocks(staged: np.ndarray, finite: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Finite elements in f64, one block in each row, padded with zeros; and the count of each."""
    number = -(-staged.size // BLOCK)
    length = min(staged.size, BLOCK) if number <= 1 else BLOCK
    length = -(-max(length, 1) // _LANES) * _LANES
    blocks = np.zeros((max(number, 1), length))
    counts = np.zeros(max(number, 1), np.int64)
    whole = bool(finite.all())
    for k in range(number):
        part = slice(k * BLOCK, (k + 1) * BLOCK)
        kept = staged[part] if whole else staged[part][finite[part]]
        blocks[k, : kept.size] = kept
        counts[k] = kept.size
    return blocks, counts


def _joined(a: tuple[int, float, float], b: tuple[int, float, float]) -> tuple[int, float, float]:
    """(count, mean, squared distances) of both."""
    (before, old, squares), (more, mean, m2) = a, b
    if not more:
        return a
    after = before + more
    apart = mean - old
    share = float(more) / float(after)
    grown = squares + m2 + apart * apart * float(before) * share
    return after, old + apart * share, grown


def _sums(blocks: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Of each row, as `fixed_sum_f64` adds."""
    chains = np.zeros((len(blocks), _LANES))
    for at in range(0, blocks.shape[1], _LANES):
        chains += blocks[:, at : at + _LANES]
    return _halved(chains)


def _sums_of_squares(blocks: np.ndarray, counts: np.ndarray, means: np.ndarray) -> np.ndarray:
    """Of each row's distances from its mean, as `fixed_squares_f64` adds."""
    places = np.arange(blocks.shape[1])
    apart = np.where(places < counts[:, None], blocks - means[:, None], 0.0)
    high, low = _square(apart)
    chains = np.zeros((len(blocks), _LANES))
    for at in range(0, blocks.shape[1], _LANES):
        chains = _added(chains, high[:, at : at + _LANES], low[:, at : at + _LANES])
    return _halved(chains)


def _halved(chains: np.ndarray) -> np.ndarray:
    """Chains on chains, then lanes on lanes, halves on halves."""
    while chains.shape[1] > 1:
        half = chains.shape[1] // 2
        chains = chains[:, :half] + chains[:, half:]
    return chains[:, 0]


def _square(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """x * x as its rounded value and what was rounded off (Dekker 1971)."""
    high = x * x
    scaled = x * _SPLIT
    upper = scaled - (scaled - x)
    lower = x - upper
    return high, ((upper * upper - high) + 2.0 * upper * lower) + lower * lower


def _two_sum(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """a + b as its rounded value and what was rounded off (Knuth)."""
    total = a + b
    other = total - a
    return total, (a - (total - other)) + (b - other)


def _added(chain: np.ndarray, high: np.ndarray, low: np.ndarray) -> np.ndarray:
    """chain + (high + low), rounded once (Boldo and Melquiond 2008: what is left is rounded to
    odd, so that the last rounding sees on which side it lies).
    """
    middle, rest = _two_sum(chain, low)
    top, under = _two_sum(high, middle)
    odd, lost = _two_sum(rest, under)
    bits = odd.view(np.int64)
    wrong = (lost != 0) & (bits & 1 == 0)
    away = (lost > 0) == (odd > 0)
    bits[wrong] += np.where(away, 1, -1)[wrong]
    return top + odd
