"""Shape rules: whatever they are given, they give types or say what is wrong with it."""

from __future__ import annotations

import random

import pytest

import opstep.kernels  # noqa: F401 - registers the ops
from opstep.runtime.ir.dims import symbol
from opstep.runtime.ir.mesh import ALONE, Group, Mesh
from opstep.runtime.ir.op import OPS, Mismatch, Op, complete, resolve
from opstep.runtime.ir.types import DTYPES, TensorType

N, M = symbol("N"), symbol("M")
DIMS = [0, 1, 1, 2, 3, 8, 8, N, N, M, N * 2, N // 2, M - 1]
DTYPE_LIST = list(DTYPES.values())
VALUES = {
    "int": (-5, -2, -1, 0, 1, 2, 3, 7, 100, 2**63 - 1),
    "float": (0.0, 1.0, -1.5, float("nan"), float("inf")),
    "number": (0, 1, -1, 2.5, float("nan"), float("-inf")),
    "bool": (True, False),
    "str": ("mean", "sum", "none", "", "tanh", "constant", "reflect", "nearest", "bilinear", "?"),
    "dim": (*DIMS, -1, -3),
    "dtype": DTYPE_LIST,
}
MESH = Mesh((("data", 2), ("model", 3)), True)
GROUPS = (ALONE, Group(MESH, ("data",)), Group(MESH, ("data", "model")))


def some_type(rng: random.Random) -> TensorType:
    shape = tuple(rng.choice(DIMS) for _ in range(rng.choice((0, 1, 2, 2, 3, 4, 4, 5))))
    common = [DTYPES["f32"], DTYPES["i32"], DTYPES["i64"]]
    return TensorType(rng.choice(DTYPE_LIST if rng.random() < 0.5 else common), shape)


def some_value(rng: random.Random, kind: str):
    if kind == "axes":
        return rng.choice(GROUPS)
    if kind.endswith("s"):
        return tuple(
            rng.choice(VALUES[kind[:-1]]) for _ in range(rng.choice((0, 1, 1, 2, 2, 4, 8)))
        )
    return rng.choice(VALUES[kind])


def some_call(rng: random.Random, op: type[Op]):
    """Operand types and attributes, many of them fitting."""
    count = len(op.operands)
    if count and op.operands[-1].variadic:
        count = rng.randrange(1, 5)
    elif count:
        count = rng.randrange(sum(not o.optional for o in op.operands), count + 1)
    same, alike = some_type(rng), rng.random()
    types = [same if rng.random() < alike else some_type(rng) for _ in range(count)]
    if count and rng.random() < 0.1:
        types[rng.randrange(count)] = rng.choice((2, 0.5, -1))
    given = {a.name: some_value(rng, a.type) for a in op.attrs if a.required or rng.random() < 0.5}
    return types, given


@pytest.mark.parametrize("name", sorted(n for n, op in OPS.items() if not op.traits.host))
def test_types_or_a_message(name: str) -> None:
    op, rng = OPS[name], random.Random(name)
    for _ in range(200):
        types, given = some_call(rng, op)
        try:
            results = resolve(op, types, complete(op, given)).results
        except (Mismatch, ZeroDivisionError):
            continue
        assert all(isinstance(t, TensorType) for t in results)
