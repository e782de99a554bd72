"""Kernels that the schedule for CUDA makes of graphs of rows, in the simulator and as PTX: beside
float64, beside the CPU's.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from row_programs import declared, shared_rows
from rowwise import check, close, numbers, widened

from opstep.api.devices import entered_on
from opstep.kernels.schedules.cuda import columns
from opstep.runtime.device.cpu import device as cpu
from opstep.runtime.device.cuda.compiling import compiler
from opstep.runtime.device.cuda.lowering import Lowering, Prepared
from opstep.runtime.device.cuda.simulator import simulator
from opstep.runtime.device.single import one_step
from opstep.runtime.ir.op import OPS, complete
from opstep.runtime.ir.types import TensorType, f32

# op -> operands of x's shape, operands of one row
OPERANDS = {
    "softmax": (1, 0),
    "log_softmax": (1, 0),
    "softmax_grad": (2, 0),
    "log_softmax_grad": (2, 0),
    "layer_norm": (1, 2),
    "layer_norm_with_statistics": (1, 2),
    "layer_norm_grad": (2, 1),
    "rms_norm": (1, 1),
    "rms_norm_grad": (2, 1),
}


def operands(name: str, dtype: str, *shape: int) -> tuple[list[np.ndarray], dict[str, Any]]:
    own, of_row = OPERANDS[name]
    arrays = [numbers(dtype, *shape, seed=k) for k in range(own)]
    arrays += [numbers(dtype, shape[-1], seed=k + 7) for k in range(of_row)]
    return arrays, {} if "softmax" in name else {"shape": (shape[-1],)}


def simulated(name: str, arrays: list[np.ndarray], attrs: dict[str, Any]) -> list[np.ndarray]:
    """The schedule's results, which are those of the oracle."""
    op: Any = OPS[name]
    attrs = complete(op, attrs)
    found = simulator.execute(op, arrays, attrs)
    with np.errstate(all="ignore"):
        wanted = op.oracle(*map(widened, arrays), **attrs)
    for own, true in zip(found, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        close(own, true)
    return found


@pytest.mark.parametrize("n", [1, 7, 64, 500])
@pytest.mark.parametrize("dtype", ["f64", "f32", "bf16", "f16"])
@pytest.mark.parametrize("name", OPERANDS)
def test_results(name, dtype, n):
    simulated(name, *operands(name, dtype, 3, n))


@pytest.mark.parametrize("name", ["softmax", "layer_norm", "rms_norm_grad"])
def test_a_row_of_a_whole_block(name):
    for dtype, n in (("f32", 5000), ("f64", 1030), ("bf16", 4096)):
        simulated(name, *operands(name, dtype, 2, n))


@pytest.fixture
def no_registers(monkeypatch):
    shared_rows(monkeypatch)


@pytest.mark.usefixtures("no_registers")
@pytest.mark.parametrize("dtype, n", [("f64", 133), ("f32", 512), ("bf16", 516), ("f16", 500)])
@pytest.mark.parametrize("name", OPERANDS)
def test_long_rows(name, dtype, n):
    simulated(name, *operands(name, dtype, 3, n))


def test_a_row_of_many_blocks():
    simulated("rms_norm", *operands("rms_norm", "f32", 1, 36004))


@pytest.mark.parametrize("dtype", ["f64", "f32", "bf16"])
@pytest.mark.parametrize("name", [name for name in OPERANDS if "softmax" in name])
def test_columns(name, dtype):
    for shape, axis in (((2, 19, 3), 1), ((5, 200), 0), ((3, 1), 1)):
        simulated(name, operands(name, dtype, *shape)[0], {"axis": axis})


@pytest.mark.parametrize("name", ["group_norm", "group_norm_with_statistics"])
@pytest.mark.parametrize("plane", [(), (3,), (4, 5)])
def test_numbers_of_planes(name, plane):
    """scale and bias are one for each channel, of which a row has several."""
    for dtype, channels, groups in (("f32", 6, 2), ("bf16", 4, 1), ("f64", 5, 5)):
        params = [numbers(dtype, channels, seed=k) for k in (1, 2)]
        simulated(name, [numbers(dtype, 2, channels, *plane), *params], {"groups": groups})


@pytest.mark.usefixtures("no_registers")
def test_numbers_of_planes_of_long_rows():
    params = [numbers("f32", 6, seed=k) for k in (1, 2)]
    simulated("group_norm", [numbers("f32", 2, 6, 67), *params], {"groups": 2})


def test_parameters_of_another_type():
    arrays, attrs = operands("layer_norm", "bf16", 3, 24)
    simulated("layer_norm", [arrays[0], *(a.astype("f4") for a in arrays[1:])], attrs)


@pytest.mark.parametrize("n", [5, 64, 1100])
@pytest.mark.parametrize("name", OPERANDS)
def test_extreme_numbers(name, n):
    extremes_as_on_the_cpu(name, n)


@pytest.mark.usefixtures("no_registers")
@pytest.mark.parametrize("name", OPERANDS)
def test_extreme_numbers_of_long_rows(name):
    extremes_as_on_the_cpu(name, 300)


def extremes_as_on_the_cpu(name: str, n: int) -> None:
    """NaN and infinities are where the CPU has them."""
    arrays, attrs = operands(name, "f32", 6, n)
    for x in arrays:
        rows = x.reshape(-1, n)
        rows[0, 3] = np.nan
    for x in arrays[: OPERANDS[name][0]]:
        x[1, 0], x[2, n - 1], x[3, :] = np.inf, -np.inf, -np.inf
        x[4, 2:] = -np.inf
    op: Any = OPS[name]
    attrs = complete(op, attrs)
    with np.errstate(all="ignore"):
        found = simulator.execute(op, arrays, attrs)
        expected = cpu.execute(op, arrays, attrs)
    for own, want in zip(found, expected, strict=True):
        np.testing.assert_array_equal(np.isnan(own), np.isnan(want))
        np.testing.assert_array_equal(np.isinf(own) * np.sign(own), np.isinf(want) * np.sign(want))


def folding(axis: int):
    """A graph of reductions of all kinds, of more sums than two, of a mask."""

    def define(g, x, mask, share):
        seen = g.where(mask, x, 0.0)
        most, least = (f(seen, axes=[axis], keepdims=True) for f in (g.max, g.min))
        terms = (seen, g.square(seen), g.abs(seen))
        sums = [g.sum(v, axes=[axis], keepdims=True) for v in terms]
        scaled = g.div(g.sub(seen, least), g.add(g.sub(most, least), share))
        again = g.mean(scaled, axes=[axis], keepdims=True)
        return g.sub(scaled, again), g.add(sums[0], g.mul(sums[1], sums[2])), most

    return define


def all_reductions(dtype: str, shape: tuple[int, ...], axis: int, mask: Any, share: Any) -> None:
    """x has a row whose maximum and minimum are NaN."""

    def infer(x, mask, share):
        number = x.with_shape(1 if k == axis else d for k, d in enumerate(x.shape))
        return x, number, number

    x = numbers(dtype, *shape)
    x[1, -1, -1] = np.nan
    mask[..., -1, -1] = True
    with declared("folding(x: F, mask: B, share: F)", infer, folding(axis)) as name:
        op: Any = OPS[name]
        found = simulator.execute(op, [x, mask, share.astype(x.dtype)], {})
        wanted = op.oracle(*map(widened, (x, mask, share)))
    for own, true in zip(found, wanted, strict=True):
        close(own, true)


SHARE = np.array([[[0.5]], [[2.0]]])  # a number for some rows


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("n", [6, 130, 1500])
def test_all_kinds_of_reductions(dtype, n):
    all_reductions(dtype, (2, 3, n), 2, numbers("f32", 3, n) > 0, SHARE)


@pytest.mark.usefixtures("no_registers")
def test_all_kinds_of_reductions_of_long_rows():
    all_reductions("f32", (2, 3, 300), 2, numbers("f32", 3, 300) > 0, SHARE)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_all_kinds_of_reductions_of_columns(dtype):
    share = np.broadcast_to(SHARE, (2, 1, 3)) + np.arange(3)
    all_reductions(dtype, (2, 20, 3), 1, numbers("f32", 2, 20, 3) > 0, share)


@pytest.fixture
def few_columns(monkeypatch):
    """Blocks share columns."""
    monkeypatch.setattr(columns, "MANY", 0)
    monkeypatch.setattr(columns, "BUSY", 4096)


@pytest.mark.usefixtures("few_columns")
@pytest.mark.parametrize("dtype", ["f64", "f32", "bf16"])
def test_blocks_share_columns(dtype):
    x, gy, scale = (numbers(dtype, *shape) for shape in ((260, 40), (260, 40), (40,)))
    x += np.array(3, x.dtype)
    check("var", x, axes=(0,))
    check("batch_norm_train", x, scale, scale)
    wide = scale.astype("f8" if dtype == "f64" else "f4")
    check("batch_norm_grad", x, scale, gy, wide, np.abs(wide))
    check("log_softmax", x, axis=0)


@pytest.mark.parametrize("n", [16, 21])
@pytest.mark.parametrize("dtype", ["f64", "f32", "bf16"])
def test_a_thread_has_a_column_alone(dtype, n, monkeypatch):
    monkeypatch.setattr(columns, "BUSY", 1)
    x, gy, label = numbers(dtype, 2, n, 67), numbers(dtype, 2, n, 67), np.full((2, 67), n - 1)
    x[0, :, :3], x[0, 3, 3], x[0, 4, 4], x[0, :9, 5] = -np.inf, np.nan, np.inf, -np.inf
    for name in ("softmax", "log_softmax"):
        check(name, x, axis=1)
        check(f"{name}_grad", x[1:], gy[1:], axis=1)
    check("logsumexp", x, axes=(1,))
    check("var", x[1:] + np.array(3, x.dtype), axes=(1,))
    check("softmax_cross_entropy", x[1:], label[1:], axis=1)
    check("softmax_cross_entropy_grad", x[1:], label[1:], gy[0, 0, 0], axis=1)


@pytest.mark.usefixtures("no_registers")
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_largest_elements_of_long_rows(name):
    x = numbers("f32", 4, 300)
    x[0, :70], x[1, 100], x[2, :], x[3, 5] = -np.inf, np.nan, -np.inf, np.inf
    check(name, x)


@pytest.mark.usefixtures("no_registers")
def test_the_first_element_is_not_finite():
    x = numbers("f32", 3, 300)
    x[0, 0], x[1, 0], x[2, 7] = np.inf, np.nan, -np.inf
    check("var", x, axes=(1,))
    check("batch_norm_train", x[:, None], np.ones(1, "f4"), np.ones(1, "f4"))


def prepared(op: Any, arrays: list[np.ndarray], attrs: dict[str, Any]) -> Prepared:
    step, stored, results = one_step(op, arrays, complete(op, attrs))
    (launch,) = Lowering(step, (*stored, *results)).prepared()[0]
    assert isinstance(launch, Prepared)
    return launch


INSTRUCTIONS = (r"ld\.global\S*\.v\d", r"ld\.global", r"st\.global\S*\.v\d", r"st\.global", "shfl")


def counted(launch: Prepared) -> list[int]:
    """Vector loads, loads, vector stores, stores, shuffles. There is no local memory."""
    ptx, _ = compiler.to_ptx(launch.kernel, "sm_90")
    assert "__local_depot" not in ptx
    return [len(re.findall(text, ptx)) for text in INSTRUCTIONS]


@pytest.mark.parametrize("name, n, reads, writes, shuffles", [
    ("softmax", 64, 2, 2, 6),
    ("softmax", 4096, 8, 8, 14),
    ("layer_norm_grad", 64, 6, 2, 12),
    ("layer_norm_grad", 4096, 24, 8, 28),
])  # fmt: skip
def test_each_element_is_read_and_written_once(name, n, reads, writes, shuffles):
    """By vectors, x, gy and scale."""
    arrays, attrs = operands(name, "f32", 4, n)
    found = counted(prepared(OPS[name], arrays, attrs))
    assert found == [reads, reads, writes, writes, shuffles]


@pytest.mark.parametrize("n, columns, threads", [(4096, 64, 32), (50, 4096, 8), (50, 1 << 17, 1)])
def test_threads_share_columns_where_these_are_few(n, columns, threads):
    launch = prepared(OPS["log_softmax"], [np.zeros((n, columns), "f4")], {"axis": 0})
    assert launch.block[0] == max(32, 128 // threads) * threads
    assert ("bar.sync" in compiler.to_ptx(launch.kernel, "sm_90")[0]) == (threads > 1)


def test_long_functions_leave_rows_in_registers():
    def define(g, x):
        long = g.pow(g.gelu(g.tanh(x)), 1.7)
        return g.sub(long, g.sum(long, axes=[1], keepdims=True))

    with declared("long_functions(x: F)", lambda x: x, define) as name:
        vectors = counted(prepared(OPS[name], [numbers("f32", 4, 1024)], {}))
    assert vectors == [8, 8, 8, 8, 5]


def test_where_it_is_one_op():
    """A composite is called where runs of a row are no neighbouring elements."""
    enters = entered_on("cuda", steps=False)

    def define(g, x, *, axes):
        return g.sub(x, g.mean(x, axes=axes, keepdims=True))

    with declared("centred(x: F, *, axes: ints)", lambda x, axes: x, define) as name:
        op: Any = OPS[name]
        for shape, axes, called in [
            *(((2, 3, n), (2,), False) for n in (50, 50000)),
            *(((2, 3, 50), axes, False) for axes in ((1,), (1, 2), (0, 2))),
            ((2, 3, 50, 4), (0, 2), True),
        ]:
            assert enters(op, (TensorType(f32, shape),), {"axes": axes}) is called
