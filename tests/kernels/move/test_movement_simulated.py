"""Copies on CUDA, thread by thread: words, tiles, gathers, borders, indices."""

from __future__ import annotations

import numpy as np
import pytest

import opstep.kernels  # noqa: F401 - registers the ops
from opstep.runtime.device.cuda.simulator import simulator
from opstep.runtime.ir.op import OPS, complete
from opstep.runtime.ir.types import DTYPES

CASES = [
    ("transpose", [(5, 9)], {}),
    ("transpose", [(70, 40)], {}),  # tiles with edges
    ("transpose", [(64, 128)], {}),  # whole tiles
    ("transpose", [(3, 33, 20)], {"perm": (0, 2, 1)}),
    ("transpose", [(20, 3, 10)], {"perm": (0, 2, 1)}),  # planes too small for tiles
    ("transpose", [(2, 3, 4, 5)], {"perm": (1, 0, 2, 3)}),
    ("concat", [(2, 3), (2, 5)], {"axis": 1}),
    ("concat", [(2, 16), (3, 16)], {"axis": 0}),
    ("concat", [(2, 16, 2), (2, 8, 2)], {"axis": 1}),
    ("stack", [(2, 3), (2, 3)], {"axis": 1}),
    ("stack", [(5, 9), (5, 9)], {"axis": -1}),  # pairs of elements are words
    ("stack", [(3, 4)] * 3, {"axis": 2}),
    ("split", [(6, 32)], {"sections": 2, "axis": 1}),
    ("split", [(6, 31)], {"sizes": (3, 28), "axis": 1}),
    ("slice", [(6, 32)], {"starts": (1, 4), "ends": (5, 29)}),
    ("slice", [(6, 32)], {"starts": (1, 31), "ends": (5, 0), "steps": (2, -3)}),
    ("slice", [(3, 5000)], {"starts": (1,), "ends": (3,)}),
    ("flip", [(6, 32)], {"axes": (1,)}),
    ("roll", [(6, 32)], {"axes": (1,), "shifts": (5,)}),
    ("tile", [(3, 8)], {"repeats": (2, 3)}),
    ("tril", [(6, 7)], {}),
    ("broadcast", [(6, 1)], {"shape": (6, 40)}),
    ("broadcast", [(40,)], {"shape": (6, 40)}),
    ("pad", [(3, 5)], {"pads": (1, 2, 3, 4), "value": 2}),
    ("pad", [(2, 2, 6, 70)], {"pads": (0, 0, 1, 1, 0, 0, 1, 1), "value": 3}),
    ("pad", [(5, 6)], {"pads": (-1, 2, 0, -1)}),
    ("pad", [(3, 5)], {"pads": (1, 2, 1, 2), "mode": "reflect"}),
    ("identity", [(6, 7)], {}),
]


def check(name: str, operands: list[np.ndarray], **attrs) -> None:
    """Nothing is computed: elements are equal."""
    given = complete(OPS[name], attrs)
    found = simulator.execute(OPS[name], operands, given)
    wanted = OPS[name].oracle(*operands, **given)
    for got, want in zip(found, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        assert got.shape == want.shape
        np.testing.assert_array_equal(got.astype(np.float64), want.astype(np.float64))


def some(shape, dtype: str) -> np.ndarray:
    rng = np.random.default_rng(1)
    if DTYPES[dtype].is_float:
        return rng.standard_normal(shape).astype(DTYPES[dtype].numpy)
    return rng.integers(-100, 100, shape).astype(DTYPES[dtype].numpy)


@pytest.mark.parametrize("dtype", ["f64", "f32", "bf16", "i8"])
@pytest.mark.parametrize("name, shapes, attrs", CASES, ids=str)
def test_copies(name, shapes, attrs, dtype):
    check(name, [some(shape, dtype) for shape in shapes], **attrs)


def test_types_that_differ_are_converted_on_the_way():
    counts, halves = some((4, 16), "i32"), some((4, 16), "bf16")
    mask = np.arange(4).reshape(4, 1) % 2 == 0
    for dtype in ("f32", "f64"):
        given = complete(OPS["concat"], {})
        (found,) = simulator.execute(OPS["concat"], [counts, some((4, 16), dtype)], given)
        assert found.dtype == DTYPES[dtype].numpy
        np.testing.assert_array_equal(found[:4], counts.astype(found.dtype))
    (found,) = simulator.execute(OPS["where"], [mask, counts, halves], {})
    np.testing.assert_array_equal(found[1], halves[1])
    np.testing.assert_array_equal(found[0], counts[0].astype(halves.dtype))


@pytest.mark.parametrize("dtype", ["f32", "bf16", "i8"])
def test_rows_by_index(dtype):
    index = np.random.default_rng(2).integers(-8, 8, (5, 2))  # some of them do not exist
    for shape, axis in (((6, 16), 0), ((3, 6, 5), 1), ((6, 2100), 0)):
        x = some(shape, dtype)
        given = complete(OPS["gather"], {"axis": axis})
        (found,) = simulator.execute(OPS["gather"], [x, index], given)
        np.testing.assert_array_equal(
            found.astype(np.float64), OPS["gather"].oracle(x, index, axis=axis).astype(np.float64)
        )


def test_elements_by_index():
    index = np.random.default_rng(2).integers(-6, 6, (4, 3, 5))
    check("gather_elements", [some((4, 6, 5), "f32"), index], axis=1)
    check("one_hot", [index[0]], classes=6)
    check("one_hot", [index[0]], classes=6, axis=0, dtype=DTYPES["bf16"])


@pytest.mark.parametrize("axis, ignored", [(0, None), (1, 3)])
def test_rows_that_meet_are_added(axis, ignored):
    """More columns than a block has threads, more places than it looks through at once."""
    index = np.random.default_rng(3).integers(-9, 9, 300)
    gy = np.random.default_rng(4).integers(-8, 8, (2, 300, 5) if axis else (300, 270))
    check("gather_grad", [gy.astype(np.float32), index], size=7, axis=axis, ignored=ignored)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
def test_what_is_broadcast_into_working_memory_is_converted_once(dtype):
    x, source = some((3, 4), dtype), some((2, 1), dtype)
    check("index_put_add", [x, source, np.array([2, 0])])
