"""Random tensors, counter-based: element i depends on seed, step and i alone, so every run replays.

The generator is Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
SC11). Block b of a draw has the counter (b, step), the key is the seed, each in two 32-bit words. A
block gives four words: four elements, or two of f64 where 53 bits are wanted. The optional operand
`step` moves the counter, so that a training loop draws anew each turn.
"""

from __future__ import annotations

import math

import numpy as np

from opstep.kernels.creation import shaped
from opstep.runtime.device.launch import Launch
from opstep.runtime.ir.op import Mismatch, Op
from opstep.runtime.ir.types import f64

# every integer in the generator is unsigned: numba makes a float of signed with unsigned
_MULTIPLIER_0 = np.uint64(0xD2511F53)
_MULTIPLIER_1 = np.uint64(0xCD9E8D57)
_WEYL_0 = np.uint64(0x9E3779B9)
_WEYL_1 = np.uint64(0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)
_TOP_24 = np.uint64(8)
_TOP_21 = np.uint64(11)
_JOIN = np.uint64(21)
_SCALE_32 = np.float32(2.0**-24)
_SCALE_64 = np.float64(2.0**-53)
_TURN_32 = np.float32(2 * math.pi)
_TURN_64 = np.float64(2 * math.pi)


def philox(c0, c1, c2, c3, k0, k1):
    """Ten rounds; words are uint64 below 2**32. Gives four such words."""
    for _ in range(10):
        p0 = c0 * _MULTIPLIER_0
        p1 = c2 * _MULTIPLIER_1
        c0, c1, c2, c3 = (p1 >> _SHIFT) ^ c1 ^ k0, p1 & _LOW, (p0 >> _SHIFT) ^ c3 ^ k1, p0 & _LOW
        k0 = (k0 + _WEYL_0) & _LOW
        k1 = (k1 + _WEYL_1) & _LOW
    return c0, c1, c2, c3


def block_of(seed, step, block):
    """The four words of a block; `seed`, `step` and `block` are int64."""
    s, t, b = np.uint64(seed), np.uint64(step), np.uint64(block)
    return philox(b & _LOW, b >> _SHIFT, t & _LOW, t >> _SHIFT, s & _LOW, s >> _SHIFT)


def word_of(words, k):
    """Word k of a block. Compiled code indexes a tuple by constants alone."""
    return words[0] if k == 0 else words[1] if k == 1 else words[2] if k == 2 else words[3]


def unit_32(word):
    """24 bits: f32 in 0 <= u < 1, exactly."""
    return np.float32(np.int64(word >> _TOP_24)) * _SCALE_32


def unit_64(high, low):
    """53 bits: f64 in 0 <= u < 1, exactly."""
    bits = (high << _JOIN) | (low >> _TOP_21)
    return np.float64(np.int64(bits)) * _SCALE_64


def uniform_32(step, y, seed, low, high, size, lo, hi):
    """Units are blocks of four."""
    for block in range(lo, hi):
        words = block_of(seed, np.int64(step[0]), block)
        for k in range(4):
            i = 4 * block + k
            if i < size:
                y[i] = low + (high - low) * unit_32(word_of(words, k))


def uniform_64(step, y, seed, low, high, size, lo, hi):
    """Units are blocks of two."""
    for block in range(lo, hi):
        a, b, c, d = block_of(seed, np.int64(step[0]), block)
        y[2 * block] = low + (high - low) * unit_64(a, b)
        if 2 * block + 1 < size:
            y[2 * block + 1] = low + (high - low) * unit_64(c, d)


def normal_32(step, y, seed, mean, std, size, lo, hi):
    """Box-Muller: two words give two numbers. Units are blocks of four."""
    for block in range(lo, hi):
        a, b, c, d = block_of(seed, np.int64(step[0]), block)
        for half in range(2):
            first, second = (a, b) if half == 0 else (c, d)
            # from 0 < u <= 1, so that the logarithm is finite
            radius = math.sqrt(-2.0 * math.log(unit_32(first) + _SCALE_32))
            angle = _TURN_32 * unit_32(second)
            i = 4 * block + 2 * half
            if i < size:
                y[i] = mean + std * (radius * math.cos(angle))
            if i + 1 < size:
                y[i + 1] = mean + std * (radius * math.sin(angle))


def normal_64(step, y, seed, mean, std, size, lo, hi):
    """Units are blocks of two."""
    for block in range(lo, hi):
        a, b, c, d = block_of(seed, np.int64(step[0]), block)
        radius = math.sqrt(-2.0 * math.log(unit_64(a, b) + _SCALE_64))
        angle = _TURN_64 * unit_64(c, d)
        y[2 * block] = mean + std * (radius * math.cos(angle))
        if 2 * block + 1 < size:
            y[2 * block + 1] = mean + std * (radius * math.sin(angle))


def integers(step, y, seed, low, span, size, lo, hi):
    """low + word*span / 2**32, rounded down. Units are blocks of four."""
    for block in range(lo, hi):
        words = block_of(seed, np.int64(step[0]), block)
        for k in range(4):
            i = 4 * block + k
            if i < size:
                y[i] = low + np.int64((word_of(words, k) * np.uint64(span)) >> _SHIFT)


def below(step, y, seed, limit, size, lo, hi):
    """1 where a word is below `limit` (0 to 2**32), else 0. Units are blocks of four."""
    for block in range(lo, hi):
        words = block_of(seed, np.int64(step[0]), block)
        for k in range(4):
            i = 4 * block + k
            if i < size:
                y[i] = 1 if np.int64(word_of(words, k)) < limit else 0


def drop(x, step, y, seed, limit, scale, size, lo, hi):
    """x*scale, or 0 where a word is below `limit`. Units are blocks of four."""
    for block in range(lo, hi):
        words = block_of(seed, np.int64(step[0]), block)
        for k in range(4):
            i = 4 * block + k
            if i < size:
                y[i] = 0.0 if np.int64(word_of(words, k)) < limit else x[i] * scale


def copy_all(x, y, lo, hi):
    for i in range(lo, hi):
        y[i] = x[i]


# --- the same in NumPy ----------------------------------------------------------------------------


def words_of(seed: int, step: int, count: int) -> np.ndarray:
    """The first `count` words of a draw as uint64[count]."""
    blocks = np.arange(-(-count // 4), dtype=np.uint64)
    t, s = np.uint64(step & 0xFFFF_FFFF_FFFF_FFFF), np.uint64(seed & 0xFFFF_FFFF_FFFF_FFFF)
    high, low = (np.full_like(blocks, w) for w in (t >> _SHIFT, t & _LOW))
    with np.errstate(over="ignore"):
        found = philox(blocks & _LOW, blocks >> _SHIFT, low, high, s & _LOW, s >> _SHIFT)
    return np.stack(found, axis=1).reshape(-1)[:count]


def units_of(seed: int, step, shape, wide: bool) -> np.ndarray:
    """Uniform numbers as they are drawn for f64 (`wide`) or for narrower types."""
    size = int(np.prod(shape, dtype=np.int64))
    step = 0 if step is None else int(step)
    if not wide:
        return (words_of(seed, step, size) >> _TOP_24).astype(np.float64) * 2.0**-24
    words = words_of(seed, step, 2 * size).reshape(-1, 2)
    return ((words[:, 0] << _JOIN) | (words[:, 1] >> _TOP_21)).astype(np.float64) * 2.0**-53


# --- declarations ---------------------------------------------------------------------------------


def _step_of(step):
    """The operand as a kernel's argument: a pointer, to 0 where it is absent."""
    return (0,) if step is None else step


def _check_step(step) -> None:
    if step is not None and step.rank:
        raise Mismatch(f"step is a single number, i32[] or i64[], not {step}", 0)


def _blocks(size: int, each: int) -> int:
    return -(-size // each)


class _Floats(Op):
    """Draws of floating-point numbers with two parameters."""

    grad = None

    @classmethod
    def infer(cls, step=None, *, shape, dtype, seed, **parameters):
        _check_step(step)
        if not dtype.is_float:
            raise Mismatch(f"{cls.name} draws floats, not {dtype}", "dtype")
        cls.check(**parameters)
        return shaped(shape, dtype)

    @classmethod
    def cpu(cls, step, y, *, shape, dtype, seed, **parameters):
        narrow, wide = cls.kernels
        kernel, each = (wide, 2) if dtype is f64 else (narrow, 4)
        first, second = parameters.values()
        units = _blocks(y.size, each)
        return Launch(
            kernel, _step_of(step), y, seed, first, second, y.size, units=units, grain=4096
        )


class uniform(_Floats):
    """Numbers evenly spread over low <= x < high."""

    signature = (
        "uniform(step: X?, *, shape: dims, low: float = 0.0, high: float = 1.0, "
        "dtype: dtype = f32, seed: int = 0)"
    )
    formula = "low + (high - low)*u"
    source = "torch.rand, ONNX RandomUniform"
    kernels = (uniform_32, uniform_64)

    def check(low, high):
        if not low <= high:
            raise Mismatch(f"low={low} lies above high={high}", "low")

    def oracle(step=None, *, shape, low, high, dtype, seed):
        return (low + (high - low) * units_of(seed, step, shape, dtype is f64)).reshape(shape)

    def flops(step=None, *, shape, low, high, dtype, seed):
        return 60 * shaped(shape, dtype).size


class normal(_Floats):
    """Numbers of the normal distribution."""

    signature = (
        "normal(step: X?, *, shape: dims, mean: float = 0.0, std: float = 1.0, "
        "dtype: dtype = f32, seed: int = 0)"
    )
    formula = "mean + std*sqrt(-2*log(1 - u))*cos(2*pi*v), and with sin for every second element"
    source = "torch.randn, ONNX RandomNormal; Box and Muller 1958"
    kernels = (normal_32, normal_64)

    def check(mean, std):
        if std < 0:
            raise Mismatch(f"std is {std}; it is 0 or more", "std")

    def oracle(step=None, *, shape, mean, std, dtype, seed):
        size = int(np.prod(shape, dtype=np.int64))
        wide = dtype is f64
        u = units_of(seed, step, (size + size % 2,), wide).reshape(-1, 2)
        radius = np.sqrt(-2 * np.log(u[:, 0] + (2.0**-53 if wide else 2.0**-24)))
        angle = 2 * np.pi * u[:, 1]
        both = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
        return mean + std * both.reshape(-1)[:size].reshape(shape)

    def flops(step=None, *, shape, mean, std, dtype, seed):
        return 80 * shaped(shape, dtype).size


def _limit(p: float) -> int:
    """The word below which an event of probability p happens."""
    return round(p * 2**32)


def _check_probability(p: float) -> None:
    if not 0 <= p <= 1:
        raise Mismatch(f"p is {p}; a probability is 0 to 1", "p")


class bernoulli(Op):
    """1 (or true) with probability p, else 0."""

    signature = (
        "bernoulli(step: X?, *, shape: dims, p: float = 0.5, dtype: dtype = bool, seed: int = 0)"
    )
    source = "torch.bernoulli, ONNX Bernoulli"
    grad = None

    def infer(step=None, *, shape, p, dtype, seed):
        _check_step(step)
        _check_probability(p)
        return shaped(shape, dtype)

    def oracle(step=None, *, shape, p, dtype, seed):
        size = int(np.prod(shape, dtype=np.int64))
        words = words_of(seed, 0 if step is None else int(step), size)
        return (words < np.uint64(_limit(p))).reshape(shape)

    def cpu(step, y, *, shape, p, dtype, seed):
        units = _blocks(y.size, 4)
        return Launch(below, _step_of(step), y, seed, _limit(p), y.size, units=units, grain=4096)

    def flops(step=None, *, shape, p, dtype, seed):
        return 60 * shaped(shape, dtype).size


class randint(Op):
    """Integers evenly spread over low <= k < high."""

    signature = (
        "randint(step: X?, *, shape: dims, low: int = 0, high: int, dtype: dtype = i64, "
        "seed: int = 0)"
    )
    formula = "low + floor(word*(high - low) / 2**32)"
    source = "torch.randint"
    grad = None

    def infer(step=None, *, shape, low, high, dtype, seed):
        _check_step(step)
        if not dtype.is_integer:
            raise Mismatch(f"randint draws integers, not {dtype}", "dtype")
        if not 0 < high - low <= 2**32:
            raise Mismatch(f"high={high} is to lie above low={low}, by at most 2**32", "high")
        most = (1 << dtype.bits - (dtype.kind == "i")) - 1
        if low < (-most - 1 if dtype.kind == "i" else 0) or high - 1 > most:
            raise Mismatch(f"{dtype} cannot hold all of {low} to {high - 1}", "dtype")
        return shaped(shape, dtype)

    def oracle(step=None, *, shape, low, high, dtype, seed):
        size = int(np.prod(shape, dtype=np.int64))
        words = words_of(seed, 0 if step is None else int(step), size)
        drawn = (words * np.uint64(high - low)) >> _SHIFT
        return (low + drawn.astype(np.int64)).reshape(shape)

    def cpu(step, y, *, shape, low, high, dtype, seed):
        units = _blocks(y.size, 4)
        return Launch(
            integers, _step_of(step), y, seed, low, high - low, y.size, units=units, grain=4096
        )

    def flops(step=None, *, shape, low, high, dtype, seed):
        return 60 * shaped(shape, dtype).size


class dropout(Op):
    """In training each element is 0 with probability p, else x/(1 - p); otherwise x as it is."""

    signature = "dropout(x: F, step: X?, *, p: float = 0.5, seed: int, training: bool = true)"
    formula = "0 with probability p, else x/(1 - p)"
    source = "torch.nn.functional.dropout, ONNX Dropout; Srivastava et al. 2014"

    def infer(x, step=None, *, p, seed, training):
        if step is not None and step.rank:
            raise Mismatch(f"step is a single number, i32[] or i64[], not {step}", 1)
        _check_probability(p)
        return x

    def oracle(x, step=None, *, p, seed, training):
        if not training or p == 0:
            return x
        words = words_of(seed, 0 if step is None else int(step), x.size).reshape(x.shape)
        dropped = words < np.uint64(_limit(p))
        return np.where(dropped, 0.0, x * (1 / (1 - p) if p < 1 else 0.0))

    def cpu(x, step, y, *, p, seed, training):
        if not training or p == 0:
            return Launch(copy_all, x, y, units=x.size)
        scale = 1 / (1 - p) if p < 1 else 0.0
        args = (x, _step_of(step), y, seed, _limit(p), scale, x.size)
        return Launch(drop, *args, units=_blocks(x.size, 4), grain=4096)

    def grad(g, operands, results, grads, *, p, seed, training):
        """The mask is drawn again: what was dropped passes nothing back."""
        (gy,), (_, step) = grads, operands
        return g.dropout(gy, step, p=p, seed=seed, training=training), None

    def flops(x, step=None, *, p, seed, training):
        return 60 * x.size
