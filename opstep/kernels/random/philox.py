"""Philox 4x32-10: four random 32-bit words from a 128-bit counter and a 64-bit key, without state.

Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011. The key is the
op's seed; the counter is the index of the block of four words and the op's step: a run replays
whatever thread makes which element, and each step of a training loop draws anew.
"""

from __future__ import annotations

import numpy as np

_M0, _M1 = 0xD2511F53, 0xCD9E8D57  # multipliers
_W0, _W1 = 0x9E3779B9, 0xBB67AE85  # what the key grows by
_LOW = 0xFFFFFFFF


def _mixed(c0, c1, c2, c3, k0, k1):
    """One round, on words in int64; the product may wrap, its bits are right."""
    p0 = c0 * 0xD2511F53
    p1 = c2 * 0xCD9E8D57
    high0 = (p0 >> 32) & 0xFFFFFFFF
    high1 = (p1 >> 32) & 0xFFFFFFFF
    return high1 ^ c1 ^ k0, p1 & 0xFFFFFFFF, high0 ^ c3 ^ k1, p0 & 0xFFFFFFFF


def _round(c0, c1, c2, c3, k0, k1):
    """Of the words and of the key."""
    grown0, grown1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    c0, c1, c2, c3 = _mixed(c0, c1, c2, c3, k0, k1)
    return c0, c1, c2, c3, grown0, grown1


def philox(block, step, seed):
    """In a kernel: the four words of a block. Ten rounds, written out so that loops around it
    vectorise.
    """
    k0, k1 = seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF
    a, b = block & 0xFFFFFFFF, (block >> 32) & 0xFFFFFFFF
    c, d = step & 0xFFFFFFFF, (step >> 32) & 0xFFFFFFFF
    a, b, c, d, k0, k1 = _round(a, b, c, d, k0, k1)
    a, b, c, d, k0, k1 = _round(a, b, c, d, k0, k1)
    a, b, c, d, k0, k1 = _round(a, b, c, d, k0, k1)
    a, b, c, d, k0, k1 = _round(a, b, c, d, k0, k1)
    a, b, c, d, k0, k1 = _round(a, b, c, d, k0, k1)
    a, b, c, d, k0, k1 = _round(a, b, c, d, k0, k1)
    a, b, c, d, k0, k1 = _round(a, b, c, d, k0, k1)
    a, b, c, d, k0, k1 = _round(a, b, c, d, k0, k1)
    a, b, c, d, k0, k1 = _round(a, b, c, d, k0, k1)
    return _mixed(a, b, c, d, k0, k1)


def philox_words(count: int, step: int, seed: int) -> np.ndarray:
    """The oracle: words 0 to count of the sequence, as uint64 below 2**32."""
    block = np.arange(-(-count // 4), dtype=np.uint64)
    words = philox_rounds(
        [block & _LOW, block >> 32, *(np.full_like(block, w) for w in _halves(step))], _halves(seed)
    )
    return np.stack(words, axis=-1).reshape(-1)[:count]


def _halves(number: int) -> tuple[int, int]:
    return number & _LOW, (number >> 32) & _LOW


def philox_rounds(counter: list[np.ndarray], key: tuple[int, int], rounds: int = 10):
    """Ten rounds on arrays of counter words (uint64 below 2**32), as the paper writes them."""
    c0, c1, c2, c3 = counter
    for r in range(rounds):
        k0, k1 = (key[0] + r * _W0) & _LOW, (key[1] + r * _W1) & _LOW
        p0, p1 = c0 * np.uint64(_M0), c2 * np.uint64(_M1)
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & _LOW, (p0 >> 32) ^ c3 ^ k1, p0 & _LOW
    return c0, c1, c2, c3
