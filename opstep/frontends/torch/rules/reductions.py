"""Along axes: sums, extremes, orders, cumulative ops, softmax."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from opstep.frontends.torch.body import Body, Var, axes_of
from opstep.frontends.torch.errors import Untranslatable
from opstep.frontends.torch.rules.registry import RULES, rule
from opstep.runtime.ir.types import boolean, f32, i64


def of_rows(function: Callable[..., Any]) -> Callable[..., Any]:
    """A rule of ops along axes: a scalar counts as having one."""

    @wraps(function)
    def translated(b: Body, x: Var, *args: Any, **kwargs: Any) -> Any:
        if x.type.rank:
            return function(b, x, *args, **kwargs)
        found = function(b, b.reshape(x, shape=[1]), *args, **kwargs)
        if isinstance(found, Var):
            return b.reshaped(found, ())
        return tuple(b.reshaped(v, ()) for v in found)

    return translated


@of_rows
def _reduced(b: Body, x: Var, op: str, axes: Any, keepdims: bool, **attrs: Any) -> Var:
    listed = axes_of(axes, x.type.rank)
    axes = listed if len(listed) < x.type.rank else None
    if x.dtype is boolean:
        op = {"max": "any", "min": "all"}.get(op, op)
    if op in ("sum", "mean", "prod"):
        x = _raised(b, x)
    return getattr(b, op)(x, axes=axes, keepdims=keepdims, **attrs)


def _raised(b: Body, x: Var) -> Var:
    """x in the result's type where the sum is of floats, or becomes one."""
    return b.to(x, b.out.dtype) if b.out.dtype.is_float else x


def _reduction(op: str):
    return lambda b, x, axes=None, keepdim=False, *, dtype=None: _reduced(b, x, op, axes, keepdim)


for _names, _op in {
    "sum.default sum.dim_IntList": "sum", "mean.default mean.dim": "mean",
    "prod.default prod.dim_int": "prod", "amax.default max.default": "max",
    "amin.default min.default": "min", "any.default any.dim any.dims": "any",
    "all.default all.dim all.dims": "all", "logsumexp.default": "logsumexp",
}.items():  # fmt: skip
    rule(*_names.split())(_reduction(_op))


def _arg(op: str):
    @of_rows
    def translated(b: Body, x, axis=None, keepdim=False):
        x = b.cast(x, dtype=i64) if x.dtype is boolean else x
        return getattr(b, op)(x, axis=axis, keepdims=keepdim)

    return translated


def _with_index(op: str):
    def translated(b: Body, x, axis, keepdim=False):
        return _reduced(b, x, op, [axis], keepdim), _arg(f"arg{op}")(b, x, axis, keepdim)

    return translated


def _binary(op: str):
    return lambda b, x, other: b.binary(op, x, other)


for _op in ("max", "min"):
    RULES[f"{_op}.other"] = _binary(f"{_op}imum")
    RULES[f"{_op}.dim"] = _with_index(_op)
    RULES[f"arg{_op}.default"] = _arg(f"arg{_op}")


def _spread(op: str):
    """Without axes the second argument is whether it is unbiased."""

    def translated(b: Body, x, axes=None, unbiased=True, keepdim=False, *, correction=None):
        if isinstance(axes, bool):
            axes, unbiased = None, axes
        correction = int(unbiased) if correction is None else correction
        if correction != int(correction):
            raise Untranslatable("a correction that is no integer")
        return _reduced(b, x, op, axes, keepdim, correction=int(correction))

    return translated


def _with_mean(spread: Callable[..., Var]):
    def translated(b: Body, x, axes=None, *, correction=None, keepdim=False):
        found = spread(b, x, axes, correction=correction, keepdim=keepdim)
        return found, _reduced(b, x, "mean", axes, keepdim)

    return translated


for _op in ("var", "std"):
    rule(f"{_op}.correction", f"{_op}.dim", f"{_op}.default")(_spread(_op))
    rule(f"{_op}_mean.correction")(_with_mean(_spread(_op)))


@rule("linalg_vector_norm.default", "norm.ScalarOpt_dim", "norm.Scalar")
def norm(b: Body, x, p=2, axes=None, keepdim=False, *, dtype=None):
    p, x = 2 if p is None else p, b.to(x, b.out.dtype)
    if p in (1, 2, float("inf")):
        return _reduced(b, x, "norm", axes, keepdim, p=float(p))
    if p == 0:
        counted = b.cast(b.not_equal(x, 0.0), dtype=b.out.dtype)
        return _reduced(b, counted, "sum", axes, keepdim)
    if p == float("-inf"):
        return _reduced(b, b.abs(x), "min", axes, keepdim)
    x = b.to(x, f32) if x.dtype.is_half else x  # powers overflow soon
    powers = _reduced(b, b.pow(b.abs(x), float(p)), "sum", axes, keepdim)
    if p < 0:
        return b.pow(powers, 1.0 / p)
    none = b.equal(powers, 0.0)  # where the root has no slope, and PyTorch gives 0
    return b.where(none, 0.0, b.pow(b.where(none, 1.0, powers), 1.0 / p))


def _along(op: str):
    """In the result's type where that is a float."""

    @of_rows
    def translated(b: Body, x, axis, *_, **__):
        x = _raised(b, x)
        return getattr(b, op)(b.cast(x, dtype=i64) if x.dtype is boolean else x, axis=axis)

    return translated


for _op in ("cumsum", "cumprod", "logcumsumexp", "cummax", "cummin"):
    RULES[f"{_op}.default"] = _along(_op)
for _op in ("softmax", "log_softmax"):
    rule(f"{_op}.int", f"_{_op}.default", f"special_{_op}.int")(_along(_op))


@rule("_softmax_backward_data.default")
def softmax_backward(b: Body, gy, y, axis, _):
    return b.softmax_grad(y, gy, axis=axis)


@rule("_log_softmax_backward_data.default")
def log_softmax_backward(b: Body, gy, y, axis, _):
    return b.log_softmax_grad(y, gy, axis=axis)


@rule("sort.default", "sort.stable")
@of_rows
def sort(b: Body, x, dim=-1, descending=False, *, stable=None):
    return b.sort(x, axis=dim, descending=descending)


@rule("argsort.default")
@of_rows
def argsort(b: Body, x, axis=-1, descending=False):
    return b.argsort(x, axis=axis, descending=descending)


@rule("topk.default")
@of_rows
def topk(b: Body, x, k, axis=-1, largest=True, sorted=True):
    return b.top_k(x, k=k, axis=axis, largest=largest, sorted=sorted)


@rule("kthvalue.default")
@of_rows
def kthvalue(b: Body, x, k, axis=-1, keepdim=False):
    both = (b.select(t, index=k - 1, axis=axis) for t in b.sort(x, axis=axis))
    return tuple(b.unsqueeze(t, axes=[axis]) if keepdim else t for t in both)


@rule("median.dim")
@of_rows
def median_dim(b: Body, x, axis=-1, keepdim=False):
    """The lower of two in the middle; the first NaN, if there is one."""
    values, indices = kthvalue(b, x, (x.shape[axis] + 1) // 2, axis, keepdim)
    if not x.dtype.is_float:
        return values, indices
    flags = b.isnan(x)
    found = b.any(flags, axes=[axis], keepdims=keepdim)
    first = b.argmax(b.cast(flags, dtype=i64), axis=axis, keepdims=keepdim)
    return b.where(found, float("nan"), values), b.where(found, first, indices)


@rule("median.default")
def median(b: Body, x):
    return median_dim(b, b.reshape(x, shape=[x.type.size]), 0)[0]
