"""Random tensors. Each is a function of seed, step and shape alone, so runs are reproducible with
any number of threads.

Two ops with the same seed draw the same numbers, so give each its own. The optional operand `step`
advances the counter: a training loop that passes its step draws new numbers in each step.
"""

from __future__ import annotations

import math

import numpy as np

from opstep.kernels.math.fastmath import log, turn_cos, turn_sin
from opstep.kernels.math.float32 import turn_cos32, turn_sin32
from opstep.kernels.move.creation import shaped
from opstep.kernels.pointwise.cuda_elementwise import elementwise
from opstep.kernels.pointwise.elementwise import same
from opstep.kernels.random.cuda_random import by_fours, by_twos, random_grid, word_by_word
from opstep.kernels.random.cuda_random import drop as gpu_drop
from opstep.kernels.random.philox import philox, philox_words
from opstep.kernels.rules.literals import check_value
from opstep.runtime.device.launch import Launch
from opstep.runtime.ir.op import Mismatch, Op
from opstep.runtime.ir.types import f64

NO_STEP = (0,)  # an absent `step` is 0
GRAIN = 4096  # blocks


def checked_step(step) -> None:
    if step is not None and step.shape:
        raise Mismatch(f"step is a scalar, not {step}", 0)


def blocks_of(size: int, each: int) -> int:
    """Units of a kernel that makes `each` elements of one Philox block."""
    return -(-size // each)


class Random(Op):
    """Base: optional operand step; attributes shape, dtype and seed."""

    grad = None

    def infer(step, *, shape, dtype, **attrs):
        checked_step(step)
        return shaped(shape, dtype)

    def flops(step, *, shape, **attrs):
        n = 1
        for d in shape:
            n = n * d
        return n * 16


def floats_only(dtype):
    if not dtype.is_float:
        raise Mismatch(f"draws floats, not {dtype}", "dtype", hint="use randint or bernoulli")


def unit_f32(word):
    """24 bits of a word as a number in [0, 1)."""
    return np.float32(word >> 8) * 5.9604644775390625e-08


def unit_f64(high, low):
    """53 bits of two words as a number in [0, 1)."""
    return np.float64((high >> 5) * 67108864 + (low >> 6)) * 1.1102230246251565e-16


def between(u, low, high):
    """Rounding may reach `high`, which is not in the range; a range wider than the largest number
    is gone through by halves.
    """
    span = high - low
    half = u * (0.5 * high - 0.5 * low)
    v = low + u * span if span < 1e999 else (low + half) + half
    return v if v < high else low


def uniform_of_word(word, low, high):
    return between(unit_f32(word), low, high)


def uniform_of_words(a, b, c, d, low, high):
    return between(unit_f64(a, b), low, high), between(unit_f64(c, d), low, high)


def uniform_f32(y, step, seed, size, low, high, lo, hi):
    for block in range(lo, min(hi, size // 4)):
        a, b, c, d = philox(block, step[0], seed)
        y[4 * block] = between(unit_f32(a), low, high)
        y[4 * block + 1] = between(unit_f32(b), low, high)
        y[4 * block + 2] = between(unit_f32(c), low, high)
        y[4 * block + 3] = between(unit_f32(d), low, high)
    if hi > size // 4:
        words = philox(size // 4, step[0], seed)
        for k in range(size % 4):
            y[size - size % 4 + k] = between(unit_f32(words[k]), low, high)


def uniform_f64(y, step, seed, size, low, high, lo, hi):
    for block in range(lo, hi):
        a, b, c, d = philox(block, step[0], seed)
        y[2 * block] = between(unit_f64(a, b), low, high)
        if 2 * block + 1 < size:
            y[2 * block + 1] = between(unit_f64(c, d), low, high)


def units_of(count: int, step: int, seed: int, wide: bool) -> np.ndarray:
    """Oracle: numbers in [0, 1), of one word each or, `wide`, of two."""
    if not wide:
        return (philox_words(count, step, seed) >> np.uint64(8)) * 2.0**-24
    words = philox_words(2 * count, step, seed).reshape(-1, 2)
    return ((words[:, 0] >> np.uint64(5)) * 2.0**26 + (words[:, 1] >> np.uint64(6))) * 2.0**-53


def at(step) -> int:
    return 0 if step is None else int(step)


class uniform(Random):
    """Uniformly distributed over low <= y < high; rounding to f16 or bf16 may reach high."""

    signature = (
        "uniform(step: X?, *, shape: dims, low: float = 0.0, high: float = 1.0, "
        "dtype: dtype = f32, seed: int = 0)"
    )
    formula = "low + (high - low)*u, u of 24 random bits (f64: 53)"
    source = "torch.rand, ONNX RandomUniform"

    def infer(step, *, shape, low, high, dtype, seed):
        floats_only(dtype)
        if not low <= high:
            raise Mismatch(f"low={low} is above high={high}", "low")
        for name, limit in (("low", low), ("high", high)):
            check_value(limit, dtype, name)
            if abs(limit) == math.inf:
                raise Mismatch(f"{name}={limit}: nothing is evenly spread to infinity", name)
        return Random.infer(step, shape=shape, dtype=dtype)

    def oracle(step=None, *, shape, low, high, dtype, seed):
        u = units_of(math.prod(shape), at(step), seed, dtype is f64)
        return (low * (1.0 - u) + high * u).reshape(shape)

    def cpu(step, y, *, shape, low, high, dtype, seed):
        kernel, each = (uniform_f64, 2) if y.dtype is f64 else (uniform_f32, 4)
        args = (y, step or NO_STEP, seed, y.size, low, high)
        return Launch(kernel, *args, units=blocks_of(y.size, each), grain=GRAIN)

    def cuda(step, y, *, shape, low, high, dtype, seed):
        args = (y, step or NO_STEP, seed, y.size, low, high)
        if y.dtype is f64:
            return random_grid(by_twos(uniform_of_words, "uniform"), 2, *args, size=y.size)
        return random_grid(word_by_word(uniform_of_word, "uniform"), 4, *args, size=y.size)


def radius_f32(word):
    """From 0 < u <= 1, so that the logarithm is finite."""
    return np.sqrt(-2.0 * log(unit_f32(word) + 5.9604644775390625e-08))


def normal_of_words(a, b, c, d, mean, std):
    first = std * radius_f32(a)
    second = std * radius_f32(c)
    return (
        mean + first * turn_cos32(unit_f32(b)),
        mean + first * turn_sin32(unit_f32(b)),
        mean + second * turn_cos32(unit_f32(d)),
        mean + second * turn_sin32(unit_f32(d)),
    )


def wide_normal_of_words(a, b, c, d, mean, std):
    radius = std * np.sqrt(-2.0 * log(unit_f64(a, b) + 1.1102230246251565e-16))
    t = unit_f64(c, d)
    return mean + radius * turn_cos(t), mean + radius * turn_sin(t)


def normal_f32(y, step, seed, size, mean, std, lo, hi):
    """Two pairs of a block, each on a circle of its own (Box and Muller)."""
    for block in range(lo, min(hi, size // 4)):
        a, b, c, d = philox(block, step[0], seed)
        first = std * radius_f32(a)
        second = std * radius_f32(c)
        y[4 * block] = mean + first * turn_cos(unit_f32(b))
        y[4 * block + 1] = mean + first * turn_sin(unit_f32(b))
        y[4 * block + 2] = mean + second * turn_cos(unit_f32(d))
        y[4 * block + 3] = mean + second * turn_sin(unit_f32(d))
    if hi > size // 4:
        words = philox(size // 4, step[0], seed)
        for k in range(size % 4):
            radius = std * radius_f32(words[k // 2 * 2])
            turn = unit_f32(words[k // 2 * 2 + 1])
            y[size - size % 4 + k] = mean + radius * (turn_sin(turn) if k % 2 else turn_cos(turn))


def normal_f64(y, step, seed, size, mean, std, lo, hi):
    for block in range(lo, hi):
        a, b, c, d = philox(block, step[0], seed)
        radius = std * np.sqrt(-2.0 * log(unit_f64(a, b) + 1.1102230246251565e-16))
        t = unit_f64(c, d)
        y[2 * block] = mean + radius * turn_cos(t)
        if 2 * block + 1 < size:
            y[2 * block + 1] = mean + radius * turn_sin(t)


class normal(Random):
    """Normally distributed."""

    signature = (
        "normal(step: X?, *, shape: dims, mean: float = 0.0, std: float = 1.0, "
        "dtype: dtype = f32, seed: int = 0)"
    )
    formula = "mean + std*sqrt(-2 ln u)*cos(2 pi v), and sin for every second element"
    source = "Box, Muller 1958; torch.randn, ONNX RandomNormal"

    def infer(step, *, shape, mean, std, dtype, seed):
        floats_only(dtype)
        if not std >= 0:
            raise Mismatch(f"std={std} is negative", "std")
        check_value(mean, dtype, "mean")
        check_value(std, dtype, "std")
        return Random.infer(step, shape=shape, dtype=dtype)

    def oracle(step=None, *, shape, mean, std, dtype, seed):
        size, wide = math.prod(shape), dtype is f64
        u = units_of(size + size % 2 + 2, at(step), seed, wide).reshape(-1, 2)
        least = 2.0**-53 if wide else 2.0**-24
        radius = std * np.sqrt(-2.0 * np.log(u[:, 0] + least))
        angle = 2.0 * np.pi * u[:, 1]
        pairs = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=-1)
        return (mean + pairs.reshape(-1)[:size]).reshape(shape)

    def cpu(step, y, *, shape, mean, std, dtype, seed):
        kernel, each = (normal_f64, 2) if y.dtype is f64 else (normal_f32, 4)
        args = (y, step or NO_STEP, seed, y.size, mean, std)
        return Launch(kernel, *args, units=blocks_of(y.size, each), grain=GRAIN)

    def cuda(step, y, *, shape, mean, std, dtype, seed):
        args = (y, step or NO_STEP, seed, y.size, mean, std)
        if y.dtype is f64:
            return random_grid(by_twos(wide_normal_of_words, "normal"), 2, *args, size=y.size)
        return random_grid(by_fours(normal_of_words, "normal"), 4, *args, size=y.size)


def coin_of_word(word, limit, _):
    return 1.0 if word < limit else 0.0


def coin_toss(y, step, seed, size, limit, lo, hi):
    for block in range(lo, min(hi, size // 4)):
        a, b, c, d = philox(block, step[0], seed)
        y[4 * block] = 1.0 if a < limit else 0.0
        y[4 * block + 1] = 1.0 if b < limit else 0.0
        y[4 * block + 2] = 1.0 if c < limit else 0.0
        y[4 * block + 3] = 1.0 if d < limit else 0.0
    if hi > size // 4:
        words = philox(size // 4, step[0], seed)
        for k in range(size % 4):
            y[size - size % 4 + k] = 1.0 if words[k] < limit else 0.0


def limit_of(p: float) -> int:
    """A word below it: an event of probability p."""
    return round(p * 2.0**32)


def checked_p(p: float) -> None:
    if not 0 <= p <= 1:
        raise Mismatch(f"p={p} is no probability", "p", hint="p lies between 0 and 1")


class bernoulli(Random):
    """1 (true) with probability p, else 0."""

    signature = (
        "bernoulli(step: X?, *, shape: dims, p: float = 0.5, dtype: dtype = bool, seed: int = 0)"
    )
    formula = "1 where a random word is below p*2**32, else 0"
    source = "torch.bernoulli, ONNX Bernoulli"

    def infer(step, *, shape, p, dtype, seed):
        checked_p(p)
        return Random.infer(step, shape=shape, dtype=dtype)

    def oracle(step=None, *, shape, p, dtype, seed):
        hit = philox_words(math.prod(shape), at(step), seed) < limit_of(p)
        return hit.reshape(shape).astype(np.float64 if dtype.is_float else dtype.numpy)

    def cpu(step, y, *, shape, p, dtype, seed):
        args = (y, step or NO_STEP, seed, y.size, limit_of(p))
        return Launch(coin_toss, *args, units=blocks_of(y.size, 4), grain=GRAIN)

    def cuda(step, y, *, shape, p, dtype, seed):
        args = (y, step or NO_STEP, seed, y.size, limit_of(p), 0)
        return random_grid(word_by_word(coin_of_word, "bernoulli"), 4, *args, size=y.size)


def number_of_word(word, low, count):
    return low + share_of(word, count)


def random_integers(y, step, seed, size, low, count, lo, hi):
    for block in range(lo, min(hi, size // 4)):
        a, b, c, d = philox(block, step[0], seed)
        y[4 * block] = low + share_of(a, count)
        y[4 * block + 1] = low + share_of(b, count)
        y[4 * block + 2] = low + share_of(c, count)
        y[4 * block + 3] = low + share_of(d, count)
    if hi > size // 4:
        words = philox(size // 4, step[0], seed)
        for k in range(size % 4):
            y[size - size % 4 + k] = low + share_of(words[k], count)


def share_of(word, count):
    """word * count / 2**32, rounded down; the product fits in 64 bits, whose top one is no sign."""
    return ((word * count) >> 32) & 0xFFFFFFFF


class randint(Random):
    """Integers, uniformly distributed over low <= y < high."""

    signature = (
        "randint(step: X?, *, shape: dims, low: int = 0, high: int, "
        "dtype: dtype = i64, seed: int = 0)"
    )
    formula = "low + floor(word*(high - low) / 2**32)"
    source = "torch.randint"

    def infer(step, *, shape, low, high, dtype, seed):
        if not dtype.is_integer:
            raise Mismatch(f"draws integers, not {dtype}", "dtype")
        if not 0 < high - low <= 1 << 32:
            raise Mismatch(f"high={high} is to lie above low={low}, by 2**32 at most", "high")
        limits = np.iinfo(dtype.numpy)
        if not limits.min <= low < high <= limits.max + 1:
            raise Mismatch(f"{dtype} does not hold all of {low} to {high - 1}", "dtype")
        return Random.infer(step, shape=shape, dtype=dtype)

    def oracle(step=None, *, shape, low, high, dtype, seed):
        words = philox_words(math.prod(shape), at(step), seed)
        drawn = ((words * np.uint64(high - low)) >> np.uint64(32)).astype(np.int64) + low
        return drawn.reshape(shape).astype(dtype.numpy)

    def cpu(step, y, *, shape, low, high, dtype, seed):
        args = (y, step or NO_STEP, seed, y.size, low, high - low)
        return Launch(random_integers, *args, units=blocks_of(y.size, 4), grain=GRAIN)

    def cuda(step, y, *, shape, low, high, dtype, seed):
        args = (y, step or NO_STEP, seed, y.size, low, high - low)
        return random_grid(word_by_word(number_of_word, "randint"), 4, *args, size=y.size)


def drop(x, y, step, seed, size, limit, scale, lo, hi):
    for block in range(lo, min(hi, size // 4)):
        a, b, c, d = philox(block, step[0], seed)
        i = 4 * block
        y[i] = x[i] * scale if a >= limit else 0.0
        y[i + 1] = x[i + 1] * scale if b >= limit else 0.0
        y[i + 2] = x[i + 2] * scale if c >= limit else 0.0
        y[i + 3] = x[i + 3] * scale if d >= limit else 0.0
    if hi > size // 4:
        words = philox(size // 4, step[0], seed)
        for k in range(size % 4):
            i = size - size % 4 + k
            y[i] = x[i] * scale if words[k] >= limit else 0.0


def copy_all(x, y, lo, hi):
    for i in range(lo, hi):
        y[i] = x[i]


class dropout(Op):
    """Sets random elements to 0 and scales up the others; x itself if training=false.

    The gradient drops the same elements: they are derived from seed and step, so no mask is stored.
    """

    signature = "dropout(x: F, step: X?, *, p: float = 0.5, seed: int, training: bool = true)"
    formula = "0 with probability p, else x / (1 - p)"
    source = "Srivastava et al. 2014; torch.nn.functional.dropout, ONNX Dropout"
    inplace = (0,)

    def infer(x, step, *, p, seed, training):
        if step is not None and step.shape:
            raise Mismatch(f"step is a scalar, not {step}", 1)
        checked_p(p)
        return x

    def oracle(x, step=None, *, p, seed, training):
        if not training:
            return x.copy()
        kept = philox_words(x.size, at(step), seed).reshape(x.shape) >= limit_of(p)
        return np.where(kept, x / (1 - p) if p < 1 else 0.0, 0.0)

    def cpu(x, step, y, *, p, seed, training):
        if not training:
            return Launch(copy_all, x, y, units=y.size)
        scale = 1.0 / (1.0 - p) if p < 1 else 0.0
        args = (x, y, step or NO_STEP, seed, y.size, limit_of(p), scale)
        return Launch(drop, *args, units=blocks_of(y.size, 4), grain=GRAIN)

    def cuda(x, step, y, *, p, seed, training):
        if not training:
            return elementwise(same, "dropout", (x,), y)
        scale = 1.0 / (1.0 - p) if p < 1 else 0.0
        args = (x, y, step or NO_STEP, seed, y.size, limit_of(p), scale)
        return random_grid(gpu_drop, 4, *args, size=y.size)

    def grad(g, operands, results, grads, **attrs):
        return g.dropout(grads[0], operands[1], **attrs), None

    def flops(x, step, **attrs):
        return x.size * 8
