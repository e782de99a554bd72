"""Special functions that can be made of others."""

from __future__ import annotations

from math import inf

from opstep.frontends.onnx.export_rules import rule, wide


@rule("copysign")
@wide
def _copysign(b, t, x, sign):
    """A zero has the sign of its reciprocal."""
    negative = b.where(b.equal(sign, 0.0), b.less(b.reciprocal(sign), 0.0), b.less(sign, 0.0))
    size = b.abs(x)
    return b.where(negative, b.neg(size), size)


@rule("hypot")
@wide
def _hypot(b, t, x, y):
    """The larger one is taken out, so that no square overflows."""
    x, y = b.abs(x), b.abs(y)
    large, small = b.maximum(x, y), b.minimum(x, y)
    infinite = b.logical_or(b.isinf(x), b.isinf(y))
    plain = b.logical_or(b.equal(large, 0.0), infinite)
    share = b.div(small, b.where(plain, 1.0, large))
    found = b.mul(large, b.sqrt(b.add(b.square(share), 1.0)))
    return b.where(plain, b.where(infinite, inf, 0.0), found)


@rule("logaddexp")
@wide
def _logaddexp(b, t, x, y):
    top = b.maximum(x, y)
    away = b.neg(b.abs(b.sub(x, y)))
    return b.where(b.equal(x, y), b.add(x, 0.6931471805599453), b.add(top, b.log1p(b.exp(away))))


@rule("xlogy")
@wide
def _xlogy(b, t, x, y):
    none = b.logical_and(b.equal(x, 0.0), b.logical_not(b.isnan(y)))
    return b.where(none, 0.0, b.mul(x, b.log(b.where(none, 1.0, y))))
