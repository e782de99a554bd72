"""Values and gradients where functions end: at NaN, at infinities, at zeros of either sign and at
the corners of what is piecewise, against eager PyTorch.
"""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from agreement import Call, Calls, check
from torch import Tensor
from torch.nn import functional

EDGES = [
    math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-30, -1e-30, 0.5, -0.5, 1.0, -1.0, 2.0, -2.0, 3.0,
    -3.0, 20.0, 21.0, -20.0, 6.0, 7.0, 100.0, -100.0, 1e30, -1e30,
]  # fmt: skip
LINE = torch.tensor([e for e in EDGES for _ in range(32)])  # rows that fill the vectors of any CPU
FEW = [math.nan, math.inf, -math.inf, 0.0, 0.5, -2.0, 1.0, 3.0]
PAIRS = torch.tensor(list(itertools.product(FEW, FEW))).T.contiguous()
UNARY = {
    "elu": functional.elu,
    "elu of alpha": lambda x: functional.elu(x, 0.7),
    "elu of a scaled input": lambda x: torch.ops.aten.elu(x, 2, 3, 0.5),
    "celu": lambda x: functional.celu(x, 3.0),
    "celu of a negative alpha": lambda x: functional.celu(x, -2.0),
    "selu": functional.selu,
    "leaky_relu": functional.leaky_relu,
    "relu": functional.relu,
    "relu6": functional.relu6,
    "hardtanh": lambda x: functional.hardtanh(x, -2.0, 6.0),
    "clamp": lambda x: x.clamp(-2, 2),
    "threshold": lambda x: functional.threshold(x, 1.0, 5.0),
    "softplus": functional.softplus,
    "softshrink": functional.softshrink,
    "hardsigmoid": functional.hardsigmoid,
    "hardswish": functional.hardswish,
    "sigmoid": torch.sigmoid,
    "silu": functional.silu,
    "mish": functional.mish,
    "tanh": torch.tanh,
    "abs": torch.abs,
    "sign": torch.sign,
    "sinc": torch.sinc,
    "a root": lambda x: x**0.5,
    "one by a root": lambda x: x**-0.5,
    "sqrt": torch.sqrt,
    "log": torch.log,
    "logit": torch.logit,
    "nan_to_num": lambda x: torch.nan_to_num(x, 1.0, 2.0, 3.0),
}
BINARY = {
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "fmax": torch.fmax,
    "fmin": torch.fmin,
    "atan2": torch.atan2,
    "hypot": torch.hypot,
    "xlogy": torch.xlogy,
    "pow": torch.pow,
    "lerp": lambda x, y: torch.lerp(x, y, 0.25),
    "lerp to the other end": lambda x, y: torch.lerp(x, y, 1.0),
    "lerp by a tensor": lambda x, y: torch.lerp(x, y, torch.full_like(x, 0.75)),
    "where": lambda x, y: torch.where(x > y, x, y),
    "smooth_l1_loss": lambda x, y: functional.smooth_l1_loss(x, y, reduction="none"),
    "the mean smooth_l1_loss": lambda x, y: functional.smooth_l1_loss(x, y, beta=0.5),
    "huber_loss": lambda x, y: functional.huber_loss(x, y, reduction="none"),
    "cdist": lambda x, y: torch.cdist(x[:, None, None], y[:, None, None]),
    "cdist of 0": lambda x, y: torch.cdist(x[:, None, None], y[:, None, None], p=0.0),
    "cdist of 1": lambda x, y: torch.cdist(x[:, None, None], y[:, None, None], p=1.0),
}
IN_F64_TOO = ["elu", "relu6", "hardtanh", "hardswish", "smooth_l1_loss", "maximum", "lerp"]


def results(run, functions, dtype):
    """By name: the value, and the gradient of each operand."""
    operands = {
        name: [
            t.to(dtype, copy=True).requires_grad_()
            for t in ([LINE] if name in UNARY else PAIRS.unbind())
        ]
        for name in functions
    }
    values = run(operands)
    made = [v for v in values.values() if v.requires_grad]
    torch.autograd.backward(made, [torch.full_like(v, 2.0) for v in made])
    return {k: [v.detach(), *(t.grad for t in operands[k])] for k, v in values.items()}


def applied(functions):
    return lambda operands: {k: f(*operands[k]) for k, f in functions.items()}


def assert_alike(found: list[Tensor], expected: list[Tensor], name: str) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        tol = {"rtol": 1e-5, "atol": 1e-6} if ours.dtype is torch.float32 else {}
        torch.testing.assert_close(
            ours, theirs, equal_nan=True, msg=lambda m: f"{name}: {m}", **tol
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_compiled(compiled, dtype):
    functions = UNARY | BINARY
    if dtype is torch.float64:
        functions = {k: functions[k] for k in IN_F64_TOO}
    found = results(compiled(applied(functions)), functions, dtype)
    expected = results(applied(functions), functions, dtype)
    for name in functions:
        assert_alike(found[name], expected[name], name)


def test_zeros_keep_the_sign_that_eager_mode_gives_them(compiled):
    functions = {k: (UNARY | BINARY)[k] for k in ("sign", "celu", "a root", "fmax", "fmin")}
    found = results(compiled(applied(functions)), functions, torch.float32)
    for name, (value, *_) in results(applied(functions), functions, torch.float32).items():
        assert torch.equal(found[name][0].signbit() & (value == 0), value.signbit() & (value == 0))


def test_imported():
    calls = [Call(k, f, (LINE.clone(),), {}) for k, f in UNARY.items()]
    calls += [Call(k, f, PAIRS.clone().unbind(), {}) for k, f in BINARY.items()]
    model = Calls(calls)
    check(model, *model.tensors)
