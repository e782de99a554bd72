"""Random tensors. Each is a function of seed, step and shape alone, so runs are reproducible with
any number of threads.

Two ops with the same seed draw the same numbers, so give each its own. The optional operand `step`
advances the counter: a training loop that passes its step draws new numbers in each step.
"""

from __future__ import annotations

import math

import numpy as np

from opstep.kernels.math.fastmath import log, turn_cos, turn_sin
from opstep.kernels.move.copying import copy_all
from opstep.kernels.move.creation import shaped
from opstep.kernels.pointwise.cuda_elementwise import elementwise
from opstep.kernels.pointwise.elementwise import same
from opstep.kernels.random.draws import Draw, drawn, word_by_word
from opstep.kernels.random.philox import philox_words
from opstep.kernels.rules.literals import check_value
from opstep.runtime.ir.op import Mismatch, Op
from opstep.runtime.ir.types import f64


def checked_step(step) -> None:
    if step is not None and step.shape:
        raise Mismatch(f"step is a scalar, not {step}", 0)


class Random(Op):
    """Base: optional operand step; attributes shape, dtype and seed. A subclass gives
    ``draw(**attrs)``.
    """

    grad = None

    def infer(step, *, shape, dtype, **attrs):
        checked_step(step)
        return shaped(shape, dtype)

    @classmethod
    def cpu(cls, step, y, *, seed, **attrs):
        return drawn(False, cls.name, cls.draw(**attrs), y, y, step, seed)

    @classmethod
    def cuda(cls, step, y, *, seed, **attrs):
        return drawn(True, cls.name, cls.draw(**attrs), y, y, step, seed)

    def flops(step, *, shape, **attrs):
        return 16 * math.prod(shape)


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


def uniform_of_word(word, value, low, high):
    return between(unit_f32(word), low, high)


def uniform_of_words(words, values, low, high):
    a, b, c, d = words
    return between(unit_f64(a, b), low, high), between(unit_f64(c, d), low, high)


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

    def draw(*, low, high, dtype, **attrs):
        how = (uniform_of_words, 2) if dtype is f64 else (word_by_word(uniform_of_word), 4)
        return Draw(*how, low, high)


def radius_f32(word):
    """From 0 < u <= 1, so that the logarithm is finite."""
    return np.sqrt(-2.0 * log(unit_f32(word) + 5.9604644775390625e-08))


def normal_of_words(words, values, mean, std):
    """Two pairs, each on a circle of its own (Box and Muller)."""
    first = std * radius_f32(words[0])
    second = std * radius_f32(words[2])
    return (
        mean + first * turn_cos(unit_f32(words[1])),
        mean + first * turn_sin(unit_f32(words[1])),
        mean + second * turn_cos(unit_f32(words[3])),
        mean + second * turn_sin(unit_f32(words[3])),
    )


def wide_normal_of_words(words, values, mean, std):
    a, b, c, d = words
    radius = std * np.sqrt(-2.0 * log(unit_f64(a, b) + 1.1102230246251565e-16))
    t = unit_f64(c, d)
    return mean + radius * turn_cos(t), mean + radius * turn_sin(t)


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

    def draw(*, mean, std, dtype, **attrs):
        how = (wide_normal_of_words, 2) if dtype is f64 else (normal_of_words, 4)
        return Draw(*how, mean, std)


def coin_of_word(word, value, limit, unused):
    return 1.0 if word < limit else 0.0


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

    def draw(*, p, **attrs):
        return Draw(word_by_word(coin_of_word), 4, limit_of(p))


def number_of_word(word, value, low, count):
    return low + share_of(word, count)


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

    def draw(*, low, high, **attrs):
        return Draw(word_by_word(number_of_word), 4, low, high - low)


def left_of_word(word, value, limit, scale):
    return value * scale if word >= limit else 0.0


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
            return copy_all(x, y)
        return drawn(False, "dropout", _losses(p), x, y, step, seed)

    def cuda(x, step, y, *, p, seed, training):
        if not training:
            return elementwise(same, "dropout", (x,), y)
        return drawn(True, "dropout", _losses(p), x, y, step, seed)

    def grad(g, operands, results, grads, **attrs):
        return g.dropout(grads[0], operands[1], **attrs), None

    def flops(x, step, **attrs):
        return x.size * 8


def _losses(p: float) -> Draw:
    scale = 1.0 / (1.0 - p) if p < 1 else 0.0
    return Draw(word_by_word(left_of_word), 4, limit_of(p), scale)
