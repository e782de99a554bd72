"""Along axes: sums, extremes, orders, cumulative ops, softmax."""

from __future__ import annotations

from opstep.frontends.torch.body import Body, Var, axes_of, axis_of
from opstep.frontends.torch.errors import Untranslatable
from opstep.frontends.torch.rules.registry import RULES, rule
from opstep.runtime.ir.types import boolean, f32, i64


def _reduced(b: Body, op: str, x: Var, axes, keepdims: bool, **attrs) -> Var:
    if not x.type.rank:
        x = b.reshape(x, shape=[1])
        return b.reshaped(getattr(b, op)(x, axes=[0], **attrs), ())
    listed = axes_of(axes, x.type.rank)
    axes = listed if len(listed) < x.type.rank else None
    return getattr(b, op)(x, axes=axes, keepdims=keepdims, **attrs)


@rule("sum.default", "sum.dim_IntList")
def sum_(b: Body, x, axes=None, keepdim=False, *, dtype=None):
    return _reduced(b, "sum", _raised(b, x), axes, keepdim)


@rule("mean.default", "mean.dim")
def mean(b: Body, x, axes=None, keepdim=False, *, dtype=None):
    return _reduced(b, "mean", b.to(x, b.out.dtype), axes, keepdim)


@rule("prod.default", "prod.dim_int")
def prod(b: Body, x, axis=None, keepdim=False, *, dtype=None):
    return _reduced(b, "prod", _raised(b, x), axis, keepdim)


def _raised(b: Body, x: Var) -> Var:
    """x in the result's type where the sum is of floats, or becomes one."""
    return b.to(x, b.out.dtype) if b.out.dtype.is_float else x


@rule("amax.default", "max.default")
def amax(b: Body, x, axes=None, keepdim=False):
    return _extreme(b, "max", x, axes, keepdim)


@rule("amin.default", "min.default")
def amin(b: Body, x, axes=None, keepdim=False):
    return _extreme(b, "min", x, axes, keepdim)


def _extreme(b: Body, op: str, x: Var, axes, keepdim: bool) -> Var:
    if x.dtype is boolean:
        return _reduced(b, "any" if op == "max" else "all", x, axes, keepdim)
    return _reduced(b, op, x, axes, keepdim)


RULES["max.other"] = lambda b, x, other: b.binary("maximum", x, other)
RULES["min.other"] = lambda b, x, other: b.binary("minimum", x, other)


@rule("max.dim")
def max_dim(b: Body, x, axis, keepdim=False):
    return _with_index(b, "max", x, axis, keepdim)


@rule("min.dim")
def min_dim(b: Body, x, axis, keepdim=False):
    return _with_index(b, "min", x, axis, keepdim)


def _with_index(b: Body, op: str, x: Var, axis: int, keepdim: bool):
    if not x.type.rank:
        return b.identity(x), b.filled(_index_type(b), 0)
    return _extreme(b, op, x, [axis], keepdim), _arg(b, f"arg{op}", x, axis, keepdim)


def _index_type(b: Body):
    found = b.expected[1]
    assert found is not None
    return found


@rule("argmax.default")
def argmax(b: Body, x, axis=None, keepdim=False):
    return _arg(b, "argmax", x, axis, keepdim)


RULES["argmin.default"] = lambda b, x, axis=None, keepdim=False: _arg(b, "argmin", x, axis, keepdim)


def _arg(b: Body, op: str, x: Var, axis, keepdim: bool) -> Var:
    if x.dtype is boolean:
        x = b.cast(x, dtype=i64)
    if not x.type.rank:
        return b.filled(b.out, 0)
    return getattr(b, op)(x, axis=axis, keepdims=keepdim)


@rule("any.default", "any.dim", "any.dims")
def any_(b: Body, x, axes=None, keepdim=False):
    return _reduced(b, "any", x, axes, keepdim)


@rule("all.default", "all.dim", "all.dims")
def all_(b: Body, x, axes=None, keepdim=False):
    return _reduced(b, "all", x, axes, keepdim)


def spread(b: Body, op: str, x: Var, axes, correction, keepdim: bool) -> Var:
    correction = 1 if correction is None else correction
    if correction != int(correction):
        raise Untranslatable("a correction that is no integer")
    return _reduced(b, op, x, axes, keepdim, correction=int(correction))


for _op in ("var", "std"):
    RULES[f"{_op}.correction"] = (
        lambda op: (
            lambda b, x, axes=None, *, correction=None, keepdim=False: spread(
                b, op, x, axes, correction, keepdim
            )
        )
    )(_op)
    RULES[f"{_op}.dim"] = (
        lambda op: (
            lambda b, x, axes=None, unbiased=True, keepdim=False: spread(
                b, op, x, axes, int(unbiased), keepdim
            )
        )
    )(_op)
    RULES[f"{_op}.default"] = (
        lambda op: lambda b, x, unbiased=True: spread(b, op, x, None, int(unbiased), False)
    )(_op)


@rule("var_mean.correction")
def var_mean(b: Body, x, axes=None, *, correction=None, keepdim=False):
    return spread(b, "var", x, axes, correction, keepdim), _reduced(b, "mean", x, axes, keepdim)


@rule("std_mean.correction")
def std_mean(b: Body, x, axes=None, *, correction=None, keepdim=False):
    return spread(b, "std", x, axes, correction, keepdim), _reduced(b, "mean", x, axes, keepdim)


@rule("logsumexp.default")
def logsumexp(b: Body, x, axes, keepdim=False):
    return _reduced(b, "logsumexp", x, axes, keepdim)


@rule("linalg_vector_norm.default")
def vector_norm(b: Body, x, p=2, axes=None, keepdim=False, *, dtype=None):
    return norm_of(b, x, p, axes, keepdim)


@rule("norm.ScalarOpt_dim", "norm.Scalar")
def norm(b: Body, x, p=2, axes=None, keepdim=False):
    return norm_of(b, x, 2 if p is None else p, axes, keepdim)


def norm_of(b: Body, x: Var, p, axes, keepdim: bool) -> Var:
    x = b.to(x, b.out.dtype)
    if p in (1, 2, float("inf")):
        return _reduced(b, "norm", x, axes, keepdim, p=float(p))
    if p == 0:
        counted = b.cast(b.not_equal(x, 0.0), dtype=b.out.dtype)
        return _reduced(b, "sum", counted, axes, keepdim)
    if p == float("-inf"):
        return _reduced(b, "min", b.abs(x), axes, keepdim)
    x = b.to(x, f32) if x.dtype.is_half else x  # powers overflow soon
    powers = _reduced(b, "sum", b.pow(b.abs(x), float(p)), axes, keepdim)
    if p < 0:
        return b.pow(powers, 1.0 / p)
    none = b.equal(powers, 0.0)  # where the root has no slope, and PyTorch gives 0
    return b.where(none, 0.0, b.pow(b.where(none, 1.0, powers), 1.0 / p))


@rule("cumsum.default")
def cumsum(b: Body, x, axis, *, dtype=None):
    return _scanned(b, "cumsum", x, axis)


@rule("cumprod.default")
def cumprod(b: Body, x, axis, *, dtype=None):
    return _scanned(b, "cumprod", x, axis)


def _scanned(b: Body, op: str, x: Var, axis: int) -> Var:
    if not x.type.rank:
        return b.identity(b.to(x, b.out.dtype))
    x = _raised(b, x) if x.dtype is not boolean else b.cast(x, dtype=i64)
    return getattr(b, op)(x, axis=axis_of(axis, x.type.rank))


@rule("softmax.int", "_softmax.default", "special_softmax.int")
def softmax(b: Body, x, axis, *_, **__):
    return _along(b, "softmax", x, axis)


@rule("log_softmax.int", "_log_softmax.default", "special_log_softmax.int")
def log_softmax(b: Body, x, axis, *_, **__):
    return _along(b, "log_softmax", x, axis)


def _along(b: Body, op: str, x: Var, axis: int) -> Var:
    x = b.to(x, b.out.dtype)
    if not x.type.rank:
        return b.reshape(getattr(b, op)(b.reshape(x, shape=[1])), shape=[])
    return getattr(b, op)(x, axis=axis)


@rule("_softmax_backward_data.default")
def softmax_backward(b: Body, gy, y, axis, _):
    return b.softmax_grad(y, gy, axis=axis)


@rule("_log_softmax_backward_data.default")
def log_softmax_backward(b: Body, gy, y, axis, _):
    return b.log_softmax_grad(y, gy, axis=axis)


@rule("sort.default")
def sort(b: Body, x, axis=-1, descending=False):
    if not x.type.rank:
        return b.identity(x), b.filled(_index_type(b), 0)
    return b.sort(x, axis=axis, descending=descending)


@rule("sort.stable")
def sort_stable(b: Body, x, *, stable=None, dim=-1, descending=False):
    return sort(b, x, dim, descending)


@rule("argsort.default")
def argsort(b: Body, x, axis=-1, descending=False):
    return b.argsort(x, axis=axis, descending=descending)


@rule("topk.default")
def topk(b: Body, x, k, axis=-1, largest=True, sorted=True):
    if not x.type.rank:
        return b.reshaped(x, b.out.shape), b.filled(_index_type(b), 0)
    return b.top_k(x, k=k, axis=axis, largest=largest, sorted=sorted)


@rule("kthvalue.default")
def kthvalue(b: Body, x, k, axis=-1, keepdim=False):
    return _kth(b, x, k - 1, axis, keepdim)


@rule("median.dim")
def median_dim(b: Body, x, axis=-1, keepdim=False):
    """The lower of two in the middle; the first NaN, if there is one."""
    if not x.type.rank:
        return _kth(b, x, 0, axis, keepdim)
    values, indices = _kth(b, x, (x.shape[axis] - 1) // 2, axis, keepdim)
    if not x.dtype.is_float:
        return values, indices
    flags = b.isnan(x)
    found = b.any(flags, axes=[axis], keepdims=keepdim)
    first = b.argmax(b.cast(flags, dtype=i64), axis=axis, keepdims=keepdim)
    return b.where(found, float("nan"), values), b.where(found, first, indices)


@rule("median.default")
def median(b: Body, x):
    flat = b.reshape(x, shape=[x.type.size])
    b.expected = (b.out, None)
    return median_dim(b, flat, 0)[0]


def _kth(b: Body, x: Var, k, axis: int, keepdim: bool) -> tuple[Var, Var]:
    if not x.type.rank:
        return b.identity(x), b.filled(_index_type(b), 0)
    both = (b.select(t, index=k, axis=axis) for t in b.sort(x, axis=axis))
    first, second = (b.unsqueeze(t, axes=[axis]) if keepdim else t for t in both)
    return first, second


@rule("logcumsumexp.default")
def logcumsumexp(b: Body, x, axis):
    return b.logcumsumexp(x, axis=axis) if x.type.rank else b.identity(x)


def _running(op: str):
    def translated(b: Body, x, axis):
        if not x.type.rank:
            return b.identity(x), b.filled(_index_type(b), 0)
        return getattr(b, op)(b.cast(x, dtype=i64) if x.dtype is boolean else x, axis=axis)

    return translated


RULES["cummax.default"], RULES["cummin.default"] = _running("cummax"), _running("cummin")


@rule("diff.default")
def diff(b: Body, x, n=1, axis=-1, prepend=None, append=None):
    axis = axis_of(axis, x.type.rank)
    parts = [t for t in (prepend, x, append) if t is not None]
    x = b.concat(*parts, axis=axis) if len(parts) > 1 else x
    for _ in range(n):
        size = x.shape[axis]
        later = b.slice(x, starts=[1], ends=[size], axes=[axis])
        earlier = b.slice(x, starts=[0], ends=[size - 1], axes=[axis])
        x = (b.logical_xor if x.dtype is boolean else b.sub)(later, earlier)
    return x
