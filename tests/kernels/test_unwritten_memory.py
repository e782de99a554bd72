"""No kernel computes on memory that nobody wrote: not on working memory, not on results, not on
what lies around them, even where it drops what comes of it. Subnormals there make it many times
slower, and a signalling NaN an exception.
"""

from __future__ import annotations

import zlib
from functools import partial
from random import Random

import numpy as np
import pieces
import pytest
from cases import by_dtype, cases, generator, inputs, program
from random_convolutions import drawn
from values import op_by_op

from opstep.runtime.ir.op import OPS, complete, resolve
from opstep.runtime.ir.types import TensorType, dtype_of
from opstep.runtime.ir.verified import Application

CASES = {c.id: c for c in cases()}
ZEROS = 0
PATTERNS = {
    "subnormals": 0x00000001_00000001,  # of f64, f32 and f16
    "signalling NaNs of f64": 0x7FF40001_7FF40001,
    "signalling NaNs of f32": 0x7FA00001_7FA00001,
    "all bits": 0xFFFFFFFF_FFFFFFFF,
}
ROWS, COLUMNS, TERMS = (1, 2, 7, 8, 15, 16, 17, 130), (1, 3, 8, 17, 33, 49, 84), (1, 17, 300)


def pytest_generate_tests(metafunc):
    if "case_id" in metafunc.fixturenames:
        every = metafunc.config.getoption("--every-dtype", default=False)
        metafunc.parametrize("case_id, dtype", by_dtype(every))


def test_unwritten_memory(case_id, dtype):
    case, given = CASES[case_id], inputs(CASES[case_id], dtype)
    made = program(case_id, dtype)
    same_whatever_memory_holds(
        lambda pattern, records: op_by_op(
            made, case, given, partial(recorded, generator(case), pattern, records)
        )
    )


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_products_of_many_sizes(rows, dtype):
    for columns in COLUMNS:
        for terms in TERMS:
            x, w, b = (rows, terms), (columns, terms), (columns,)
            check_op("linear", (x, w, b), dtype, {"transpose_w": False})
            check_op("linear", (x, w[::-1], b), dtype, {"transpose_w": True})
            check_op("matmul", (x, w[::-1]), dtype, {})


@pytest.mark.parametrize("seed", range(100))
def test_convolutions_at_random(seed):
    name, shapes, attrs = drawn(Random(seed))
    check_op(name, shapes, ("f4", "f8")[seed % 2], attrs)


@pytest.mark.parametrize("images, channels, filters", [(1, 64, 64), (2, 40, 70), (1, 37, 133)])
def test_convolutions_by_winograd(images, channels, filters):
    for size in ((28, 28), (33, 19), (17, 31)):
        shapes = ((images, channels, *size), (filters, channels, 3, 3))
        check_op("conv2d", shapes, "f4", {"padding": (1, 1, 1, 1)})


def check_op(name, shapes, dtype, attrs):
    rng = np.random.default_rng(zlib.crc32(repr((name, shapes)).encode()))
    arrays = [rng.standard_normal(shape).astype(dtype) for shape in shapes]
    attrs = {k: tuple(v) if isinstance(v, list) else v for k, v in attrs.items()}
    op = OPS[name]
    types = [TensorType(dtype_of(a.dtype), a.shape) for a in arrays]
    whole = complete(op, attrs)
    application = Application(op, None, resolve(op, types, whole), whole)
    same_whatever_memory_holds(
        lambda pattern, records: recorded(
            np.random.default_rng(0), pattern, records, application, arrays
        )
    )


def same_whatever_memory_holds(run):
    """The same bits and exceptions. `run` takes a pattern that fills memory, and a list for what is
    recorded.
    """
    run(ZEROS, plain := [])
    for name, pattern in PATTERNS.items():
        run(pattern, found := [])
        for mine, wanted in zip(found, plain, strict=True):
            assert mine == wanted, f"{name} in unwritten memory change what comes out"


def recorded(rng, pattern, records, application, operands):
    """Runs an op; records it with the bits of its results and its exceptions."""
    results, exceptions = pieces.run(application, operands, rng, pattern)
    records.append((application.op.name, exceptions, [r.tobytes() for r in results]))
    return results
