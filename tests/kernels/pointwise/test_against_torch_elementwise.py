"""Elementwise ops beside PyTorch's, gradients and the corners of the number line included."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from against_torch import compare  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import opstep.kernels  # noqa: E402, F401 - registers the ops
from opstep.runtime.device.cpu.device import execute  # noqa: E402
from opstep.runtime.ir.op import OPS, complete  # noqa: E402


def data(low: float, high: float, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(low, high, shape).astype(np.float32)


UNARY = {
    "neg": (torch.neg, -3, 3),
    "abs": (torch.abs, -3, 3),
    "square": (torch.square, -3, 3),
    "reciprocal": (torch.reciprocal, 0.3, 3),
    "sqrt": (torch.sqrt, 0.1, 3),
    "rsqrt": (torch.rsqrt, 0.1, 3),
    "exp": (torch.exp, -3, 3),
    "exp2": (torch.exp2, -3, 3),
    "expm1": (torch.expm1, -3, 3),
    "log": (torch.log, 0.1, 3),
    "log2": (torch.log2, 0.1, 3),
    "log10": (torch.log10, 0.1, 3),
    "log1p": (torch.log1p, -0.5, 3),
    "sin": (torch.sin, -9, 9),
    "cos": (torch.cos, -9, 9),
    "tan": (torch.tan, -1, 1),
    "asin": (torch.asin, -0.9, 0.9),
    "acos": (torch.acos, -0.9, 0.9),
    "atan": (torch.atan, -3, 3),
    "sinh": (torch.sinh, -3, 3),
    "cosh": (torch.cosh, -3, 3),
    "tanh": (torch.tanh, -3, 3),
    "asinh": (torch.asinh, -3, 3),
    "acosh": (torch.acosh, 1.2, 3),
    "atanh": (torch.atanh, -0.9, 0.9),
    "erf": (torch.erf, -3, 3),
    "erfc": (torch.erfc, -3, 3),
    "erfinv": (torch.erfinv, -0.99, 0.99),
    "lgamma": (torch.lgamma, 0.2, 9),
    "digamma": (torch.digamma, 0.2, 9),
    "floor": (torch.floor, -3, 3),
    "ceil": (torch.ceil, -3, 3),
    "round": (torch.round, -3, 3),
    "trunc": (torch.trunc, -3, 3),
    "sign": (torch.sign, -3, 3),
    "relu": (torch.relu, -3, 3),
    "sigmoid": (torch.sigmoid, -9, 9),
    "silu": (F.silu, -5, 5),
    "mish": (F.mish, -5, 5),
    "gelu": (F.gelu, -5, 5),
    "leaky_relu": (F.leaky_relu, -3, 3),
    "elu": (F.elu, -3, 3),
    "softplus": (F.softplus, -9, 25),
    "hard_sigmoid": (F.hardsigmoid, -5, 5),
    "hard_swish": (F.hardswish, -5, 5),
}


@pytest.mark.parametrize("name", UNARY)
def test_unary(name):
    peer, low, high = UNARY[name]
    compare(f"y = {name}(x)", lambda x: peer(x), x=data(low, high, 3, 41), tol=4e-6)


WITH_ATTRIBUTES = {
    "leaky_relu(x, slope=0.3)": lambda x: F.leaky_relu(x, 0.3),
    "elu(x, alpha=0.5)": lambda x: F.elu(x, 0.5),
    'gelu(x, approximate="tanh")': lambda x: F.gelu(x, approximate="tanh"),
    "softplus(x, beta=3.0, threshold=4.0)": lambda x: F.softplus(x, 3.0, 4.0),
    "clip(x, low=-1.0, high=1.0)": lambda x: torch.clamp(x, -1.0, 1.0),
    "clip(x, low=0.0, high=6.0)": lambda x: F.relu6(x),
    "clip(x, low=-0.5)": lambda x: torch.clamp(x, min=-0.5),
    "pow(x, 2)": lambda x: x**2,
    "pow(x, 3)": lambda x: x**3,
    "mul(x, 0.1)": lambda x: x * 0.1,
    "sub(1.0, x)": lambda x: 1.0 - x,
    "cast(x, dtype=f64)": lambda x: x.double(),
    "identity(x)": torch.clone,
}


@pytest.mark.parametrize("call", WITH_ATTRIBUTES)
def test_attributes_and_literals(call):
    compare(f"y = {call}", WITH_ATTRIBUTES[call], x=data(-3, 3, 3, 41), tol=4e-6)


BINARY = {
    "add": (torch.add, -3, 3),
    "sub": (torch.sub, -3, 3),
    "mul": (torch.mul, -3, 3),
    "div": (torch.div, 0.3, 3),
    "pow": (torch.pow, 0.3, 3),
    "maximum": (torch.maximum, -3, 3),
    "minimum": (torch.minimum, -3, 3),
    "atan2": (torch.atan2, 0.3, 3),
    "fmod": (torch.fmod, 0.3, 3),
    "rem": (torch.remainder, 0.3, 3),
    "hypot": (torch.hypot, 0.3, 3),
    "copysign": (torch.copysign, -3, 3),
    "xlogy": (torch.xlogy, 0.3, 3),
    "logaddexp": (torch.logaddexp, -3, 3),
}
SHAPES = [((4, 5), (4, 5)), ((2, 3, 4), (3, 1)), ((4, 1), (1, 5)), ((3,), ())]


@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("name", BINARY)
def test_binary(name, shapes):
    peer, low, high = BINARY[name]
    a, b = (data(low, high, *s, seed=k) for k, s in enumerate(shapes))
    compare(f"y = {name}(a, b)", lambda a, b: peer(a, b), a=a, b=b, tol=4e-6)


def test_floor_div_and_where_and_prelu():
    a, b = data(-9, 9, 4, 5), data(0.3, 3, 4, 5, seed=1)
    compare("y = floor_div(a, b)", lambda a, b: a.floor_divide(b), a=a, b=b, wrt=[])
    compare("y = where(c, a, b)", lambda c, a, b: torch.where(c, a, b), c=a > 0, a=a, b=b[0])
    slope = data(0.1, 0.5, 3, 1, 1)
    x = data(-3, 3, 2, 3, 4, 4)
    compare("y = prelu(x, s)", lambda x, s: F.prelu(x, s.reshape(3)), x=x, s=slope)


def test_equal_operands_share_the_gradient_of_maximum():
    a = np.array([1, 2, 3], np.float32)
    b = np.array([1, 5, -3], np.float32)
    compare("y = maximum(a, b)", lambda a, b: torch.maximum(a, b), a=a, b=b)
    compare("y = minimum(a, b)", lambda a, b: torch.minimum(a, b), a=a, b=b)


SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.5, -1.5, 1e-40, 3e38, -3e38], np.float32)
# PyTorch gives sign(nan) as 0 and gelu(inf) as NaN, and loses digits of digamma near its zero
SAME_CORNERS = sorted(set(UNARY) - {"sign", "gelu", "digamma"})


@pytest.mark.parametrize("name", SAME_CORNERS)
def test_corners(name):
    (got,) = execute(OPS[name], [SPECIAL], complete(OPS[name], {}))
    wanted = UNARY[name][0](torch.from_numpy(SPECIAL)).numpy()
    np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-38)


SPECIAL_OF_TWO = ["hypot", "copysign", "xlogy", "logaddexp"]


@pytest.mark.parametrize(
    "name", ["maximum", "minimum", "rem", "fmod", "div", "pow", "atan2", *SPECIAL_OF_TWO]
)
def test_corners_of_two(name):
    # PyTorch takes a subnormal divisor for 0
    corners = np.delete(SPECIAL, 7) if name in ("rem", "fmod") else SPECIAL
    a, b = (v.ravel() for v in np.meshgrid(corners, corners))
    (got,) = execute(OPS[name], [a, b], {})
    wanted = BINARY[name][0](torch.from_numpy(a), torch.from_numpy(b)).numpy()
    np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-38)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_special_functions_keep_their_digits(dtype):
    x = np.array([1e-30, 1e-3, 0.3, 0.7, 1.7, 3.2, 9.9, 10.1, 40.3, 1e5, -0.3, -2.6, -7.01], dtype)
    tails = np.array([-0.9999, -0.5, -1e-20, 1e-5, 0.4, 0.51, 0.999, 1 - 2.0**-24], dtype)
    peers = {
        "erfc": (torch.erfc, x),
        "erfinv": (torch.erfinv, tails),
        "digamma": (torch.digamma, x),
        "lgamma": (torch.lgamma, x),
    }
    for name, (peer, given) in peers.items():
        (got,) = execute(OPS[name], [given], {})
        wanted = peer(torch.from_numpy(given).double()).numpy()
        rtol, atol = (3e-6, 1e-38) if dtype == "f4" else (2e-13, 1e-300)
        np.testing.assert_allclose(got, wanted, rtol=rtol, atol=atol)
    (got,) = execute(OPS["trigamma"], [np.array([1, 0.5, 20, -0.5], dtype)], {})
    wanted = [np.pi**2 / 6, np.pi**2 / 2, 0.05127082293520315, np.pi**2 / 2 + 4]
    np.testing.assert_allclose(got, wanted, rtol=rtol)


COMPARISONS = {
    "equal": torch.eq,
    "not_equal": torch.ne,
    "less": torch.lt,
    "less_equal": torch.le,
    "greater": torch.gt,
    "greater_equal": torch.ge,
    "logical_and": torch.logical_and,
    "logical_or": torch.logical_or,
    "logical_xor": torch.logical_xor,
}


@pytest.mark.parametrize("name", COMPARISONS)
def test_comparisons(name):
    a, b = (v.ravel() for v in np.meshgrid(SPECIAL, SPECIAL))
    compare(f"y = {name}(a, b)", lambda a, b: COMPARISONS[name](a, b), a=a, b=b, wrt=[])


@pytest.mark.parametrize("name", ["isnan", "isinf", "isfinite", "logical_not"])
def test_kinds_of_numbers(name):
    compare(f"y = {name}(x)", getattr(torch, name), x=SPECIAL, wrt=[])


INTEGERS = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "maximum": torch.maximum,
    "bitwise_and": torch.bitwise_and,
    "bitwise_or": torch.bitwise_or,
    "bitwise_xor": torch.bitwise_xor,
}


@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "i4", "i8"])
@pytest.mark.parametrize("name", INTEGERS)
def test_integers_wrap_around(name, dtype):
    limits = np.iinfo(dtype)
    values = np.array([limits.min, limits.min + 1, 0, 1, 2, 7, limits.max - 1, limits.max], dtype)
    a, b = (v.ravel() for v in np.meshgrid(values, values))
    compare(f"y = {name}(a, b)", lambda a, b: INTEGERS[name](a, b), a=a, b=b)


@pytest.mark.parametrize("dtype", ["i1", "i4", "i8"])
def test_integer_division(dtype):
    limits = np.iinfo(dtype)
    a = np.array([limits.min + 1, -7, -1, 0, 1, 7, limits.max], dtype)
    b = np.array([-3, -1, 1, 2, 5], dtype)
    a, b = (v.ravel() for v in np.meshgrid(a, b))
    compare("y = floor_div(a, b)", lambda a, b: a.floor_divide(b), a=a, b=b)
    compare("y = rem(a, b)", lambda a, b: torch.remainder(a, b), a=a, b=b)
    compare("y = fmod(a, b)", lambda a, b: torch.fmod(a, b), a=a, b=b)
    compare("y = shift_left(a, b)", lambda a, b: a << b, a=a, b=np.abs(b))
    compare("y = shift_right(a, b)", lambda a, b: a >> b, a=a, b=np.abs(b))


@pytest.mark.parametrize("dtype", ["i1", "i4", "i8", "u1"])
def test_division_by_zero_gives_zero(dtype):
    a, zero = np.array([5, 0, 100], dtype), np.zeros(3, dtype)
    for name in ("floor_div", "rem", "fmod"):
        (got,) = execute(OPS[name], [a, zero], {})
        np.testing.assert_array_equal(got, 0)
    if dtype != "u1":  # the one quotient that has no room
        least = np.array([np.iinfo(dtype).min], dtype)
        (got,) = execute(OPS["floor_div"], [least, np.array([-1], dtype)], {})
        np.testing.assert_array_equal(got, least)
