"""Functions of one f64 without branches, for LLVM to vectorise; see `float32` for how they are
made.
"""

from __future__ import annotations

import numpy as np

from opstep.runtime.device.builtin import bits_to_float, float_to_bits, fma, pick
from opstep.runtime.device.source import pinned


@pinned("f64")
def exp64(x):
    x = np.float64(x)
    x = pick(x > 710.0, 710.0, x)
    gone = x < -746.0  # 0, without a product that underflows: those are slow
    x = pick(gone, 0.0, x)
    # adding 1.5 * 2**52 rounds to a whole number and leaves it in the low bits
    shifted = fma(x, 1.4426950408889634, 6755399441055744.0)
    n = shifted - 6755399441055744.0
    whole = x - n * 0.6931471803691238
    part = n * 1.9082149292705877e-10
    r = whole - part
    p = fma(r, 2.500450892210545e-08, 2.7630500970414433e-07)
    p = fma(r, p, 2.755757271189609e-06)
    p = fma(r, p, 2.4801492380281524e-05)
    p = fma(r, p, 0.00019841269521522916)
    p = fma(r, p, 0.0013888888944344191)
    p = fma(r, p, 0.008333333333487661)
    p = fma(r, p, 0.04166666666652729)
    p = fma(r, p, 0.16666666666666424)
    p = fma(r, p, 0.5000000000000011)
    sum = 1.0 + r
    p = sum + fma(r * r, p, ((1.0 - sum) + r) + ((whole - r) - part))
    return pick(gone, 0.0, scaled64(p, float_to_bits(shifted) - 0x4338000000000000))


@pinned("f64")
def scaled64(p, n):
    """p * 2**n, rounded once: in two steps, for 2**n alone may be out of range."""
    half = n >> 1
    first = bits_to_float((half + 1023) << 52)
    second = bits_to_float((n - half + 1023) << 52)
    return p * first * second


@pinned("f64")
def expm1_64(x):
    x = np.float64(x)
    x = pick(x > 710.0, 710.0, x)
    x = pick(x < -40.0, -40.0, x)
    shifted = fma(x, 1.4426950408889634, 6755399441055744.0)
    n = shifted - 6755399441055744.0
    whole = x - n * 0.6931471803691238
    part = n * 1.9082149292705877e-10
    r = whole - part
    p = fma(r, 2.0875200698399215e-09, 2.5109089826710898e-08)
    p = fma(r, p, 2.755740336811386e-07)
    p = fma(r, p, 2.755724407788557e-06)
    p = fma(r, p, 2.4801587171321854e-05)
    p = fma(r, p, 0.00019841269886236855)
    p = fma(r, p, 0.001388888888896318)
    p = fma(r, p, 0.008333333333321594)
    p = fma(r, p, 0.041666666666666505)
    p = fma(r, p, 0.16666666666666677)
    q = r + fma(r * r, fma(r, p, 0.5), (whole - r) - part)
    # half of the power, for 2**1024 alone would be out of range
    power = bits_to_float((float_to_bits(shifted) - 0x4338000000000000 + 1022) << 52)
    return pick(x == 0.0, x, 2.0 * fma(power, q, power - 0.5))


@pinned("f64")
def log64(x):
    """With s = f/(2 + f): ln(1 + f) = 2s + s*R(s*s), so that f enters exactly (Tang 1990)."""
    x = np.float64(x)
    small = x < 2.2250738585072014e-308
    scaled = pick(small, x * 18014398509481984.0, x)
    bits = float_to_bits(scaled) - 0x3FE6A09E667F3BCD  # sqrt(0.5)
    n = np.float64(bits >> 52) - pick(small, 54.0, 0.0)
    f = bits_to_float((bits & 0x000FFFFFFFFFFFFF) + 0x3FE6A09E667F3BCD) - 1.0
    s = f / (2.0 + f)
    z = s * s
    p = fma(z, 0.14799181492168054, 0.15313743225830448)
    p = fma(z, p, 0.18183575705166483)
    p = fma(z, p, 0.2222219836682637)
    p = fma(z, p, 0.2857142874427216)
    p = fma(z, p, 0.3999999999940678)
    p = z * fma(z, p, 0.6666666666666735)
    half = 0.5 * f * f
    low = fma(s, half + p, n * 1.9082149292705877e-10)
    y = fma(n, 0.6931471803691238, f - (half - low))
    y = pick(x == 1e999, x, y)
    y = pick(x == 0.0, -1e999, y)
    return pick(x >= 0.0, y, (x - x) / (x - x))


@pinned("f64")
def log1p64(x):
    """ln of the rounded 1 + x, and what the rounding lost."""
    x = np.float64(x)
    u = 1.0 + x
    y = log64(u)
    y = pick((u == 0.0) | (u == 1e999), y, y + (x - (u - 1.0)) / u)
    return pick(x == 0.0, x, y)


@pinned("f64")
def tanh64(x):
    """From t = e**2x - 1: t / (t + 2) below 0.5, 1 - 2 / (t + 2) above."""
    x = np.float64(x)
    size = np.abs(x)
    size = pick(size > 22.0, 22.0, size)
    t = expm1_64(2.0 * size)
    share = t / (t + 2.0)
    y = pick(size < 0.5, 0.5 * fma(-t, share, t), 1.0 - 2.0 / (t + 2.0))
    return pick(float_to_bits(x) < 0, -y, y)


@pinned("f64")
def sigmoid64(x):
    x = np.float64(x)
    e = exp64(-np.abs(x))
    share = e / (1.0 + e)
    return pick(x >= 0.0, 1.0 - share, fma(-e, share, e))


# sin64 and cos64 are good up to 1e6.


@pinned("f64")
def sin64(x):
    return _sine(np.float64(x), 0)


@pinned("f64")
def cos64(x):
    return _sine(np.float64(x), 1)


@pinned("f64")
def _sine(x, quarter):
    """The sine of x plus so many quarter turns."""
    shifted = fma(x, 0.6366197723675814, 6755399441055744.0)
    n = shifted - 6755399441055744.0
    r = fma(-n, 1.5707963267341256, x)
    r = fma(-n, 6.077100506303966e-11, r)
    r = fma(-n, 2.0222662487959506e-21, r)
    z = r * r
    s = fma(z, 1.5894584156303039e-10, -2.505072000814351e-08)
    s = fma(z, s, 2.7557313448451427e-06)
    s = fma(z, s, -0.0001984126982910418)
    s = fma(z, s, 0.008333333333321528)
    s = pick(r == 0.0, r, fma(r * z, fma(z, s, -0.1666666666666663), r))
    c = fma(z, -1.1357378907491399e-11, 2.087567882332567e-09)
    c = fma(z, c, -2.755731401987191e-07)
    c = fma(z, c, 2.4801587288308857e-05)
    c = fma(z, c, -0.0013888888888872201)
    c = fma(z, c, 0.04166666666666659)
    half = 0.5 * z
    one = 1.0 - half
    c = one + fma(z * z, c, (1.0 - one) - half)
    turns = float_to_bits(shifted) + quarter
    y = pick(turns & 1, c, s)
    return pick(turns & 2, -y, y)


@pinned("f64")
def lgamma32(number):
    """Of an f32, in f64, as terms cancel near its zeros: by Lanczos' approximation of g = 7 with
    nine terms (as P. Godfrey gives it), made one quotient; reflected below 0.5.
    """
    x = np.float64(number)
    mirrored = x < 0.5
    z = pick(mirrored, 0.0 - x, x - 1.0)
    near = pick(z < 1e30, z, 1e30)
    p = fma(near, 2.5066282746305237, 151.54656777042103)
    p = fma(near, p, 4008.2052298719027)
    p = fma(near, p, 60573.95230386002)
    p = fma(near, p, 572100.8444380839)
    p = fma(near, p, 3457884.34479936)
    p = fma(near, p, 13061711.615317967)
    p = fma(near, p, 28191871.449029636)
    p = fma(near, p, 26619414.9399008)
    q = (near + 1.0) * (near + 2.0) * (near + 3.0) * (near + 4.0)
    q = q * (near + 5.0) * (near + 6.0) * (near + 7.0) * (near + 8.0)
    r = x - ((x + 6755399441055744.0) - 6755399441055744.0)
    r = pick(np.abs(x) < 8388608.0, r, 0.0)  # all larger f32 are whole numbers
    u = r * r
    s = fma(u, 5.392664662608125e-10, -2.2948428997269856e-08)
    s = fma(u, s, 7.952054001475508e-07)
    s = fma(u, s, -2.1915353447830204e-05)
    s = fma(u, s, 0.00046630280576761234)
    s = fma(u, s, -0.007370430945714348)
    s = fma(u, s, 0.08214588661112819)
    s = fma(u, s, -0.5992645293207919)
    s = fma(u, s, 2.550164039877345)
    s = fma(u, s, -5.167712780049969)
    s = np.abs(r) * fma(u, s, 3.141592653589793)
    inside = pick(mirrored, 3.141592653589793 * q, p) / pick(mirrored, s * p, q)
    t = z + 7.5
    rest = fma(z + 0.5, log64(t), 0.0 - t)
    y = log64(inside) + pick(mirrored, 0.0 - rest, rest)
    return np.float32(pick(np.abs(x) == 1e999, 1e999, y))
