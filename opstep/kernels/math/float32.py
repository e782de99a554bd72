"""Functions of one f32 without branches, for LLVM to vectorise; at most 2 units in the last place
off.

Polynomials are least-squares fits of the relative error, reweighted towards the minimax. Reduction
of the argument follows Cody and Waite, "Software Manual for the Elementary Functions" (1980).
Infinities, NaN, zeros of both signs and subnormal numbers, in and out, are as in the C library;
`sin32` and `cos32` say up to where they hold.
"""

from __future__ import annotations

import math

import numpy as np

from opstep.kernels.math.float64 import exp64, log64
from opstep.runtime.device.builtin import bits_to_float, float_to_bits, fma, pick
from opstep.runtime.device.source import pinned


@pinned("f32")
def exp32(x):
    x = np.float32(x)
    x = pick(x > 89.0, 89.0, x)
    gone = x < -104.0  # 0, without a product that underflows: those are slow
    x = pick(gone, 0.0, x)
    # adding 1.5 * 2**23 rounds to a whole number and leaves it in the low bits
    shifted = fma(x, 1.44269504, 12582912.0)
    n = shifted - 12582912.0
    whole = x - n * 0.69287109375
    part = n * 2.7608680994530943e-04
    r = whole - part
    p = fma(r, 1.3813662e-3, 8.3690817e-3)
    p = fma(r, p, 4.1668426e-2)
    p = fma(r, p, 1.6666518e-1)
    p = fma(r, p, 4.9999994e-1)
    sum = 1.0 + r
    p = sum + fma(r * r, p, ((1.0 - sum) + r) + ((whole - r) - part))
    return pick(gone, 0.0, scaled32(p, float_to_bits(shifted) - 0x4B400000))


@pinned("f32")
def scaled32(p, n):
    """p * 2**n, rounded once: in two steps, for 2**n alone may be out of range."""
    half = n >> 1
    first = bits_to_float(np.int32((half + 127) << 23))
    second = bits_to_float(np.int32((n - half + 127) << 23))
    return p * first * second


@pinned("f32")
def exp2_32(x):
    x = np.float32(x)
    x = pick(x > 129.0, 129.0, x)
    gone = x < -151.0
    x = pick(gone, 0.0, x)
    shifted = x + 12582912.0
    r = x - (shifted - 12582912.0)
    p = fma(r, 1.5359485e-4, 1.3399137e-3)
    p = fma(r, p, 9.6184155e-3)
    p = fma(r, p, 5.5503316e-2)
    p = fma(r, p, 2.4022648e-1)
    p = fma(r, p, 6.9314718e-1)
    return pick(gone, 0.0, scaled32(fma(r, p, 1.0), float_to_bits(shifted) - 0x4B400000))


@pinned("f32")
def expm1_32(x):
    x = np.float32(x)
    top = x > 89.0
    x = pick(top, 89.0, x)
    x = pick(x < -20.0, -20.0, x)
    shifted = fma(x, 1.44269504, 12582912.0)
    n = shifted - 12582912.0
    whole = x - n * 0.69287109375
    part = n * 2.7608680994530943e-04
    r = whole - part
    p = fma(r, 1.3882228e-3, 8.3668586e-3)
    p = fma(r, p, 4.1667216e-2)
    p = fma(r, p, 1.6666541e-1)
    p = fma(r, p, 4.9999997e-1)
    q = r + fma(r * r, p, (whole - r) - part)
    # half of the power, for 2**128 alone would be out of range
    power = bits_to_float(np.int32((float_to_bits(shifted) - 0x4B400000 + 126) << 23))
    return pick(x == 0.0, x, 2.0 * fma(power, q, power - 0.5))


@pinned("f32")
def log32(x):
    x = np.float32(x)
    small = x < 1.1754944e-38
    scaled = pick(small, x * 8388608.0, x)
    bits = float_to_bits(scaled) - 0x3F3504F3  # sqrt(0.5)
    n = np.float32(np.int32(bits >> 23)) - pick(small, 23.0, 0.0)
    f = bits_to_float(np.int32((bits & 0x007FFFFF) + 0x3F3504F3)) - 1.0
    p = fma(f, 6.7624368e-2, -1.1694136e-1)
    p = fma(f, p, 1.1890769e-1)
    p = fma(f, p, -1.2402429e-1)
    p = fma(f, p, 1.4218757e-1)
    p = fma(f, p, -1.6668169e-1)
    p = fma(f, p, 2.0002168e-1)
    p = fma(f, p, -2.5000006e-1)
    p = fma(f, p, 3.3333310e-1)
    square = f * f
    y = fma(f * square, p, n * 2.7608680994530943e-04)
    y = fma(n, 0.69287109375, f + fma(-0.5, square, y))
    y = pick(x == 1e999, x, y)
    y = pick(x == 0.0, -1e999, y)
    return pick(x >= 0.0, y, (x - x) / (x - x))


@pinned("f32")
def log2_32(x):
    """From the sum in two parts, so that powers of 2 come out whole."""
    x = np.float32(x)
    small = x < 1.1754944e-38
    scaled = pick(small, x * 8388608.0, x)
    bits = float_to_bits(scaled) - 0x3F3504F3
    n = np.float32(np.int32(bits >> 23)) - pick(small, 23.0, 0.0)
    part = log32(bits_to_float(np.int32((bits & 0x007FFFFF) + 0x3F3504F3)))
    y = fma(part, 1.44269504, n)
    y = pick(x == 1e999, x, y)
    y = pick(x == 0.0, -1e999, y)
    return pick(x >= 0.0, y, (x - x) / (x - x))


@pinned("f32")
def log1p32(x):
    """ln of the rounded 1 + x, and what the rounding lost."""
    x = np.float32(x)
    u = 1.0 + x
    y = log32(u)
    y = pick((u == 0.0) | (u == 1e999), y, y + (x - (u - 1.0)) / u)
    return pick(x == 0.0, x, y)


@pinned("f32")
def tanh32(x):
    """Below 0.625 an odd polynomial; above, 1 - 2 / (e**2x + 1)."""
    x = np.float32(x)
    size = np.abs(x)
    z = x * x
    p = fma(z, -5.7019694e-3, 2.0636400e-2)
    p = fma(z, p, -5.3738892e-2)
    p = fma(z, p, 1.3331433e-1)
    p = fma(z, p, -3.3333281e-1)
    near = fma(size * z, p, size)
    y = pick(size < 0.625, near, 1.0 - 2.0 / (exp32(2.0 * size) + 1.0))
    return pick(float_to_bits(x) < 0, -y, y)


@pinned("f32")
def sigmoid32(x):
    x = np.float32(x)
    e = exp32(-np.abs(x))
    share = e / (1.0 + e)
    return pick(x >= 0.0, 1.0 - share, fma(-e, share, e))


@pinned("f32")
def erf32(x):
    """Below 0.875 a polynomial of x*x; above, 1 - e**P(|x|)."""
    x = np.float32(x)
    size = np.abs(x)
    size = pick(size > 4.0, 4.0, size)
    z = size * size
    p = fma(z, 8.6749104e-5, -8.2109979e-4)
    p = fma(z, p, 5.2067386e-3)
    p = fma(z, p, -2.6861582e-2)
    p = fma(z, p, 1.1283733e-1)
    p = fma(z, p, -3.7612635e-1)
    near = fma(size, fma(z, p, 1.2837917e-1), size)
    q = fma(size, -2.0380472e-5, 4.2627046e-4)
    q = fma(size, q, -4.1317530e-3)
    q = fma(size, q, 2.5017036e-2)
    q = fma(size, q, -1.0812366e-1)
    q = fma(size, q, -6.3348716e-1)
    q = fma(size, q, -1.1294465)
    q = fma(size, q, 1.6067796e-4)
    # e**q, -18 < q < 0, to the precision that 1 - e**q has
    shifted = fma(q, 1.44269504, 12582912.0)
    r = fma(12582912.0 - shifted, 0.693147182, q)
    e = fma(r, 1.3813662e-3, 8.3690817e-3)
    e = fma(r, e, 4.1668426e-2)
    e = fma(r, e, 1.6666518e-1)
    e = fma(r, e, 4.9999994e-1)
    e = 1.0 + fma(r * r, e, r)
    e *= bits_to_float(np.int32((float_to_bits(shifted) - 0x4B400000 + 127) << 23))
    y = pick(size < 0.875, near, 1.0 - e)
    return pick(float_to_bits(x) < 0, -y, y)


@pinned("f32")
def erfinv32(x):
    """x times a polynomial of w = -ln(1 - x*x) up to w = 5, of its root beyond (M. Giles,
    "Approximating the erfinv function", 2010; fitted anew).
    """
    x = np.float32(x)
    size = np.abs(x)
    w = -log32((1.0 - size) * (1.0 + size))
    near = w < 5.0
    root = math.sqrt(w)
    t = pick(near, w - 1.0, root - 3.0)
    p = pick(near, -8.79118378e-09, 0.000115705807)
    p = fma(t, p, pick(near, 1.41913688e-07, -0.000309576048))
    p = fma(t, p, pick(near, -5.24705968e-07, -5.67777352e-05))
    p = fma(t, p, pick(near, -4.40155463e-06, 0.00148509606))
    p = fma(t, p, pick(near, 3.82289836e-05, -0.00359740574))
    p = fma(t, p, pick(near, 0.000100281286, 0.00568697229))
    p = fma(t, p, pick(near, -0.00237644278, -0.00763728889))
    p = fma(t, p, pick(near, 0.00425064284, 0.00944528636))
    p = fma(t, p, pick(near, 0.247832894, 1.00167501))
    p = fma(t, p, pick(near, 1.12737441, 2.83297682))
    y = pick(size == 1.0, x * 1e999, p * x)
    return pick(size <= 1.0, y, (x - x) / (x - x))


@pinned("f32")
def atan32(x):
    return atan2_32(x, 1.0)


@pinned("f32")
def atan2_32(y, x):
    """An odd polynomial of the smaller size over the larger; the signs are those of C's atan2."""
    y = np.float32(y)
    x = np.float32(x)
    a, b = np.abs(y), np.abs(x)
    steep = a > b
    large = pick(steep, a, b)
    t = pick(steep, b, a) / pick(large == 0.0, 1.0, large)
    t = pick((a == 1e999) & (b == 1e999), 1.0, t)
    z = t * t
    p = fma(z, 2.84974114e-3, -1.60680357e-2)
    p = fma(z, p, 4.26905565e-2)
    p = fma(z, p, -7.5042136e-2)
    p = fma(z, p, 1.06408961e-1)
    p = fma(z, p, -1.42036349e-1)
    p = fma(z, p, 1.99926183e-1)
    p = fma(z, p, -3.33330721e-1)
    angle = fma(t * z, p, t)
    angle = pick(steep, 1.57079637 - (angle - -4.37113883e-8), angle)
    angle = pick(float_to_bits(x) < 0, 3.14159274 - (angle - -8.74227766e-8), angle)
    return pick(float_to_bits(y) < 0, -angle, angle)


@pinned("f64")
def fmod32(x, y):
    """Exact: in f64, every remainder by a quotient that is off by a unit in its last place, and by
    one that was cut to a whole number, is exact. Each takes 51 bits of the 277 that a quotient can
    have, so six leave the last; the quotient before may have been one too large or too small.
    """
    size = np.float64(np.abs(y))
    rest = np.float64(np.abs(x))
    share = 1.0 / size
    for _ in range(6):
        rest = fma(-np.trunc(rest * share), size, rest)
    rest = pick(rest < 0.0, rest + size, rest)
    rest = pick(rest >= size, rest - size, rest)
    whole = (size == 1e999) & (np.abs(x) < 1e999)  # by infinity: all of x is left
    rest = pick(whole, np.float64(np.abs(x)), rest)
    return np.float32(pick(float_to_bits(x) < 0, -rest, rest))


# sin32 and cos32 are good up to 1e6.


@pinned("f32")
def sin32(x):
    turns, rest = _turned(np.float32(x))
    return _wave(np.float32(rest), turns)


@pinned("f32")
def cos32(x):
    turns, rest = _turned(np.float32(x))
    return _wave(np.float32(rest), turns + 1)


@pinned("f64")
def _turned(x):
    """(quarter turns, in the low bits, and what is left of x: -pi/4 to pi/4)"""
    shifted = fma(np.float64(x), 0.6366197723675814, 6755399441055744.0)
    n = shifted - 6755399441055744.0
    r = fma(-n, 1.5707963267341256, np.float64(x))
    return float_to_bits(shifted), fma(-n, 6.077100506506192e-11, r)


@pinned("f32")
def turn_sin32(u):
    """The sine of 2*pi*u, |u| up to 1e6: exact about the zeros, where 2*pi*u would be rounded."""
    return _wave_of_turn(np.float32(u), 0)


@pinned("f32")
def turn_cos32(u):
    return _wave_of_turn(np.float32(u), 1)


@pinned("f32")
def _wave_of_turn(u, quarter):
    shifted = fma(u, 4.0, 12582912.0)
    r = (4.0 * u - (shifted - 12582912.0)) * 1.5707964
    return _wave(r, float_to_bits(shifted) + quarter)


@pinned("f32")
def _wave(r, turns):
    """The sine of r, -pi/4 to pi/4, and so many quarter turns."""
    z = r * r
    s = fma(z, -1.9511938e-4, 8.3321361e-3)
    s = pick(r == 0.0, r, fma(r * z, fma(z, s, -1.6666654e-1), r))
    c = fma(z, 2.4428709e-5, -1.3887283e-3)
    c = fma(z * z, fma(z, c, 4.1666646e-2), fma(-0.5, z, 1.0))
    turns = np.int32(turns)
    y = pick(turns & 1, c, s)
    return pick(turns & 2, -y, y)


@pinned("f32")
def pow32(a, b):
    """In f64 within; the special cases are those of C's pow (C17, F.10.4.4). Of exponents that are
    the same in all of a loop, LLVM makes loops of their own.
    """
    a = np.float32(a)
    b = np.float32(b)
    if (b == 2.0) | (b == 3.0) | (b == 1.0) | (b == -1.0):
        wide = np.float64(a)
        power = pick(b == 1.0, wide, wide * wide)
        power = pick(b == 3.0, wide * wide * wide, power)
        return np.float32(pick(b == -1.0, np.float64(1.0) / wide, power))
    size = np.abs(a)
    y = np.float32(exp64(np.float64(b) * log64(np.float64(size))))
    whole = b == np.rint(b)
    odd = whole & (b * 0.5 != np.rint(b * 0.5))
    negative = float_to_bits(a) < 0
    y = pick(negative & odd, -y, y)
    y = pick((a < 0.0) & (size < 1e999) & (not whole), (a - a) / (a - a), y)
    return pick((b == 0.0) | (a == 1.0) | ((a == -1.0) & (np.abs(b) == 1e999)), 1.0, y)
