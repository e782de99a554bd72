"""Elementwise CUDA kernels, thread by thread: every way in which operands step, every width."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from opstep.runtime.device.cuda.simulator import simulator
from opstep.runtime.ir.op import OPS, complete
from opstep.runtime.ir.types import DTYPES

TOLERANCE = {"f64": 1e-14, "f32": 1e-6, "f16": 2e-3, "bf16": 1.6e-2}
NUMBERS = ["f64", "f32", "f16", "bf16"]

SHAPES = [
    ((3, 5), (3, 5)),
    ((300,), (300,)),  # more than a block, and a tail
    ((5, 9), ()),
    ((), (4, 8)),
    ((6, 16), (16,)),  # rows that vectors fit
    ((6, 16), (6, 1)),  # columns
    ((2, 3, 4, 16), (3, 1, 1)),
    ((3, 7), (7,)),  # rows that end within vectors
    ((3, 7), (3, 1)),
    ((2, 3, 7), (3, 1)),
    ((3, 1), (1, 4)),
    ((2, 1, 3, 1, 2), (1, 2, 1, 3, 2)),
    ((0, 3), (3,)),
]


def values(shape, dtype: str) -> np.ndarray:
    kind = DTYPES[dtype].numpy
    rng = np.random.default_rng(len(shape) + 1)
    if DTYPES[dtype].is_float:
        return np.asarray(rng.standard_normal(shape)).astype(kind)
    return rng.integers(0, 2 if dtype == "bool" else 100, shape).astype(kind)


def check(name: str, operands: list[np.ndarray], **attrs) -> None:
    given = complete(OPS[name], attrs)
    (found,) = simulator.execute(OPS[name], operands, given)
    exact = [a.astype(np.float64) if a.dtype.kind not in "iub" else a for a in operands]
    wanted = np.asarray(OPS[name].oracle(*exact, **given))
    assert found.shape == wanted.shape
    if found.dtype.kind in "iub":
        np.testing.assert_array_equal(found, wanted.astype(found.dtype))
        return
    dtype = next(t.name for t in DTYPES.values() if t.numpy == found.dtype)
    near = TOLERANCE[dtype]
    np.testing.assert_allclose(found.astype(np.float64), wanted, rtol=near, atol=near)


@pytest.mark.parametrize("dtype", [*NUMBERS, "i64", "i32", "i8"])
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_operands_broadcast(shapes, dtype):
    check("sub", [values(shape, dtype) for shape in shapes])


@pytest.mark.parametrize("dtype", [*NUMBERS, "i16", "bool"])
@pytest.mark.parametrize("shapes", [SHAPES[1], SHAPES[4], SHAPES[7]], ids=str)
def test_relations_give_bools(shapes, dtype):
    check("less_equal", [values(shape, dtype) for shape in shapes])


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("name", ["relu", "exp", "sigmoid", "silu", "tanh", "gelu", "mish", "sin"])
def test_functions(name, dtype):
    check(name, [values((301,), dtype) * DTYPES[dtype].numpy.type(3)])


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_numbers_follow_the_operand(dtype):
    check("elu", [values((37,), dtype)], alpha=0.5)
    check("softplus", [values((37,), dtype)], beta=2.0)
    check("clip", [values((37,), dtype)], low=-0.5)
    check("gelu", [values((37,), dtype)], approximate="tanh")


@pytest.mark.parametrize("dtype", ["f64", "f32", "f16", "bf16", "i64", "i8", "bool"])
def test_where_moves_bits(dtype):
    mask = np.array([[True], [False], [True]])
    check("where", [mask, values((3, 16), dtype), values((16,), dtype)])


@pytest.mark.parametrize("target", ["f64", "f32", "f16", "bf16", "i64", "i8", "u8", "bool"])
@pytest.mark.parametrize("source", ["f64", "f32", "f16", "bf16", "i64", "i32", "i8", "bool"])
def test_casts(source, target):
    check("cast", [values((3, 7), source)], dtype=DTYPES[target])


def test_a_half_is_rounded_once():
    """1 + 2**-8 + 2**-30 lies above the middle of two neighbours, and in f32 on it."""
    x = np.array([1 + 2.0**-8 + 2.0**-30], np.float64)
    (found,) = simulator.execute(OPS["cast"], [x], {"dtype": DTYPES["bf16"]})
    assert float(found[0]) == 1 + 2.0**-7


def in_bf16(n: int) -> float:
    """A whole number to 8 bits, ties to even."""
    dropped = max(abs(n).bit_length() - 8, 0)
    return float(round(Fraction(n, 1 << dropped)) << dropped)


def test_a_long_integer_is_rounded_once(execute):
    """Halfway between two bf16 but for its last bit, which neither f32 nor f64 holds."""
    n = np.random.default_rng(0).integers(-(2**62), 2**62, 60)
    tie = (257 << 52) + np.array([-1, 0, 1, -1024, 1024, -(1 << 27), 1 << 27])
    n = np.concatenate([n, tie, -tie, [2**63 - 1, -(2**63), 2**53 + 1, 257 * 2**45 + 1]])
    (found,) = execute(OPS["cast"], [n], {"dtype": DTYPES["bf16"]})
    assert found.astype(float).tolist() == [in_bf16(int(v)) for v in n]


@pytest.mark.parametrize("dtype", ["f64", "f32", "bf16", "i32"])
def test_made_of_nothing(dtype):
    given = {"dtype": DTYPES[dtype]}
    for name, attrs in [
        ("full", {"shape": (37,), "value": 3}),
        ("iota", {"shape": (3, 5, 2), "axis": 1, "start": 2}),
        ("eye", {"shape": (2, 3, 5), "diagonal": 1}),
    ]:
        complete_attrs = complete(OPS[name], {**attrs, **given})
        (found,) = simulator.execute(OPS[name], [], complete_attrs)
        np.testing.assert_array_equal(found.astype(float), OPS[name].oracle(**complete_attrs))


@pytest.mark.parametrize("size", [1, 6, 8, 1100])
@pytest.mark.parametrize(
    "name, dtype, attrs",
    [
        ("uniform", "f32", {}),
        ("uniform", "f64", {"low": -1.0}),
        ("normal", "f32", {"std": 2.0}),
        ("normal", "f64", {}),
        ("normal", "bf16", {}),
        ("bernoulli", "bool", {"p": 0.3}),
        ("randint", "i64", {"high": 10}),
    ],
)
def test_random_numbers(name, dtype, attrs, size):
    given = complete(OPS[name], {"shape": (size,), "dtype": DTYPES[dtype], "seed": 5, **attrs})
    step = np.array(3)
    (found,) = simulator.execute(OPS[name], [step], given)
    near = 1e-2 if dtype == "bf16" else 1e-5
    wanted = OPS[name].oracle(step, **given).astype(float)
    np.testing.assert_allclose(found.astype(float), wanted, rtol=near, atol=near)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("training", [True, False])
def test_dropout(training, dtype):
    check("dropout", [values((37,), dtype)], p=0.3, seed=4, training=training)
