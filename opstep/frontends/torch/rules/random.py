"""Random numbers: ours, not PyTorch's.

Each op has a seed of its own, by its place in the model: it draws the same numbers in each run.
"""

from __future__ import annotations

from opstep.frontends.torch.body import Body, Var
from opstep.frontends.torch.rules.registry import rule
from opstep.runtime.ir.types import boolean


@rule("dropout.default")
def dropout(b: Body, x, p, train):
    if not train or p == 0:
        return x
    if p == 1:
        return b.mul(x, 0.0)
    return b.dropout(x, p=float(p), seed=b.seed)


@rule("native_dropout.default")
def native_dropout(b: Body, x, p, train):
    """The elements that are kept, too."""
    if not train or p == 0:
        return x, b.full(shape=list(x.shape), value=1, dtype=boolean)
    kept = b.bernoulli(shape=list(x.shape), p=1.0 - p, seed=b.seed)
    scale = 0.0 if p == 1 else 1.0 / (1.0 - p)
    return b.mul(b.mul(x, b.to(kept, x.dtype)), scale), kept


@rule("rand.default", "rand_like.default", "rand.generator", "rand_like.generator")
def rand(b: Body, *_, **__):
    return b.uniform(shape=list(b.out.shape), dtype=b.out.dtype, seed=b.seed)


@rule("uniform.default")
def uniform(b: Body, x, low=0.0, high=1.0, **_):
    attrs = {"low": float(low), "high": float(high)}
    return b.uniform(shape=list(b.out.shape), dtype=b.out.dtype, seed=b.seed, **attrs)


@rule("randn.default", "randn_like.default", "randn.generator", "randn_like.generator")
def randn(b: Body, *_, **__):
    return b.normal(shape=list(b.out.shape), dtype=b.out.dtype, seed=b.seed)


@rule("normal.float_float", "normal_functional.default")
def normal(b: Body, *arguments, **_):
    """The last arguments are the mean and the deviation, before a shape."""
    mean, std, *_ = (a for a in arguments if isinstance(a, int | float))
    attrs = {"mean": float(mean), "std": float(std)}
    return b.normal(shape=list(b.out.shape), dtype=b.out.dtype, seed=b.seed, **attrs)


@rule("randint.default", "randint_like.default", "randint.generator")
def randint(b: Body, *arguments, **_):
    (high, *_) = (a for a in arguments if isinstance(a, int))
    return _integers(b, 0, high)


@rule("randint.low", "randint_like.low_dtype", "randint.low_generator")
def randint_between(b: Body, *arguments, **_):
    low, high, *_ = (a for a in arguments if isinstance(a, int))
    return _integers(b, low, high)


def _integers(b: Body, low: int, high: int) -> Var:
    drawn = b.randint(shape=list(b.out.shape), low=low, high=high, seed=b.seed)
    return b.to(drawn, b.out.dtype)


@rule("randperm.default", "randperm.generator")
def randperm(b: Body, n, **_):
    """The order of random numbers."""
    drawn = b.uniform(shape=[n], seed=b.seed)
    return b.to(b.argsort(drawn), b.out.dtype)


@rule("bernoulli.p")
def bernoulli_p(b: Body, x, p=0.5, **_):
    shape = list(b.out.shape)
    return b.bernoulli(shape=shape, p=float(p), dtype=b.out.dtype, seed=b.seed)
