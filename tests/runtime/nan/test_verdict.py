"""Verdicts on single ops: which operand elements make a result's element, and what it should be.

What an op says of itself is held against its kernel: with NaN everywhere but in the part that an
element comes from, the element stays as it is; and that part alone gives it, in f64.
"""

from __future__ import annotations

import numpy as np
import pytest

import opstep.kernels  # noqa: F401 - registers the ops
from opstep.runtime.device.cpu.device import execute
from opstep.runtime.device.single import one_step
from opstep.runtime.ir.faults import Site
from opstep.runtime.ir.op import OPS, complete
from opstep.runtime.nan.verdict import judge

RNG = np.random.default_rng(5)


def floats(*shape, positive=False):
    x = RNG.standard_normal(shape).astype(np.float32)
    return np.abs(x) + 0.1 if positive else x


CASES = {
    "add, broadcast": ("add", [floats(3, 1, 4), floats(2, 1)], {}),
    "mul by a scalar": ("mul", [floats(3, 4), floats()], {}),
    "log": ("log", [floats(3, 4, positive=True)], {}),
    "div": ("div", [floats(3, 4), floats(4, positive=True)], {}),
    "sum of all": ("sum", [floats(3, 4)], {}),
    "sum over axes": ("sum", [floats(3, 4, 5)], {"axes": (0, 2)}),
    "mean, dims kept": ("mean", [floats(3, 4, 5)], {"axes": (-1,), "keepdims": True}),
    "prod": ("prod", [floats(3, 4)], {"axes": (1,)}),
    "var": ("var", [floats(3, 4)], {"axes": (0,)}),
    "std": ("std", [floats(3, 4)], {"axes": (1,), "keepdims": True}),
    "logsumexp": ("logsumexp", [floats(3, 4)], {"axes": (1,)}),
    "norm": ("norm", [floats(3, 4)], {"axes": (1,)}),
    "softmax": ("softmax", [floats(3, 4, 2)], {"axis": 1}),
    "log_softmax": ("log_softmax", [floats(3, 4)], {}),
    "softmax_grad": ("softmax_grad", [floats(3, 4), floats(3, 4)], {}),
    "cumsum": ("cumsum", [floats(3, 4)], {"axis": 1}),
    "cumsum backwards": ("cumsum", [floats(3, 4)], {"axis": 0, "reverse": True}),
    "layer_norm": ("layer_norm", [floats(3, 4), floats(4), floats(4)], {"shape": (4,)}),
    "rms_norm": ("rms_norm", [floats(2, 3, 4)], {"shape": (3, 4)}),
    "batch_norm": (
        "batch_norm",
        [floats(2, 3, 4), floats(3), floats(3), floats(3), floats(3, positive=True)],
        {},
    ),
    "batch_norm_train": ("batch_norm_train", [floats(4, 3, 2), floats(3), floats(3)], {}),
    "matmul": ("matmul", [floats(3, 4), floats(4, 5)], {}),
    "matmul, batches": ("matmul", [floats(2, 1, 3, 4), floats(6, 4, 5)], {}),
    "matmul, turned": (
        "matmul",
        [floats(4, 3), floats(5, 4)],
        {"transpose_a": True, "transpose_b": True},
    ),
    "matmul by a vector": ("matmul", [floats(3, 4), floats(4)], {}),
    "vector by matrix": ("matmul", [floats(4), floats(4, 5)], {}),
    "linear": ("linear", [floats(2, 3, 4), floats(5, 4), floats(5)], {}),
    "conv2d": ("conv2d", [floats(2, 3, 5, 6), floats(4, 3, 3, 2)], {}),
    "conv2d, padded": (
        "conv2d",
        [floats(1, 2, 5, 6), floats(4, 2, 3, 3), floats(4)],
        {"padding": (1, 2), "stride": (2, 1)},
    ),
    "conv2d, dilated": (
        "conv2d",
        [floats(1, 2, 7, 7), floats(2, 2, 3, 3)],
        {"padding": (2, 2), "dilation": (2, 2)},
    ),
    "conv2d, groups": ("conv2d", [floats(1, 4, 4, 4), floats(6, 2, 2, 2)], {"groups": 2}),
    "gather": ("gather", [floats(5, 4), np.array([[0, -1], [3, 2]])], {"axis": 0}),
    "gather, axis 1": ("gather", [floats(3, 5), np.array([4, -5])], {"axis": 1}),
    "embedding": ("embedding", [floats(5, 4), np.array([4, 0])], {}),
    "gather_elements": (
        "gather_elements",
        [floats(3, 4), np.array([[0, -1], [3, 2], [1, 1]])],
        {"axis": 1},
    ),
    "mse_loss": ("mse_loss", [floats(3, 4), floats(3, 4)], {"reduction": "none"}),
    "mse_loss, mean": ("mse_loss", [floats(3, 4), floats(3, 4)], {}),
    "avg_pool2d": ("avg_pool2d", [floats(2, 3, 6, 6)], {"kernel": (2, 3)}),
    "avg_pool2d, padded": (
        "avg_pool2d",
        [floats(1, 2, 5, 6)],
        {"kernel": (3, 3), "stride": (2, 1), "padding": (1, 1), "count_include_pad": False},
    ),
    "avg_pool2d, rounded up": (
        "avg_pool2d",
        [floats(1, 1, 5, 5)],
        {"kernel": (2, 2), "ceil_mode": True},
    ),
    "group_norm": ("group_norm", [floats(2, 4, 3), floats(4), floats(4)], {"groups": 2}),
    "einsum of three": (
        "einsum",
        [floats(2, 3, 4), floats(4, 5), floats(3)],
        {"equation": "bij,jk,i->bk"},
    ),
    "einsum": ("einsum", [floats(3, 4), floats(4, 5)], {"equation": "ij,jk->ik"}),
}


def case(name):
    op, arrays, given = CASES[name]
    attrs = complete(OPS[op], given)
    step, _, _ = one_step(OPS[op], arrays, attrs)
    missing = len(step.operand_types) - len(arrays)
    return step, [*arrays, *[None] * missing], attrs


def places(array):
    """Some elements of it, the corners among them."""
    all_of_them = list(np.ndindex(array.shape))
    return {all_of_them[k] for k in (0, -1, len(all_of_them) // 2, len(all_of_them) // 3)}


@pytest.mark.parametrize("name", CASES)
def test_nothing_but_its_part_makes_an_element(name):
    step, operands, attrs = case(name)
    results = execute(step.op, operands, attrs)
    for place in places(results[0]):
        site = Site(place, 0, operands, results, attrs)
        regions = step.op.faults.relation(site)
        ruined = []
        for array, region in zip(operands, regions, strict=False):
            if array is None or array.dtype.kind in "iu":
                ruined.append(array)
                continue
            bad = np.full_like(array, np.nan)
            if region is not None:
                bad[tuple(region)] = array[tuple(region)]
            ruined.append(bad)
        ruined += [None] * (len(operands) - len(ruined))
        again = execute(step.op, ruined, attrs)[0]
        assert again[place] == pytest.approx(results[0][place], rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_its_part_gives_an_element_in_f64(name):
    step, operands, attrs = case(name)
    results = execute(step.op, operands, attrs)
    for place in places(results[0]):
        told = results[0].copy()
        told[place] = np.inf
        verdict = judge(step, operands, [told, *results[1:]], 0)
        (element,) = verdict.elements
        assert (verdict.kind, verdict.own, element.place) == ("inf", 1, place)
        assert element.exact == pytest.approx(results[0][place], rel=1e-4, abs=1e-5)
        assert element.rule == "overflow of f32 on the way to the result"


@pytest.mark.parametrize("name", CASES)
def test_what_came_in_is_told_from_what_was_born(name):
    """NaN in one element: where the kernel carries it, it is not the op's own."""
    step, operands, attrs = case(name)
    for j, array in enumerate(operands):
        if array is None or array.dtype.kind in "iu":
            continue
        ruined = [a if a is None else a.copy() for a in operands]
        ruined[j].reshape(-1)[array.size // 2] = np.nan
        results = execute(step.op, ruined, attrs)
        for k in range(len(results)):
            verdict = judge(step, ruined, results, k)
            if verdict is not None:
                assert (verdict.own, verdict.carried) == (0, (j,))


def test_an_op_may_do_both():
    x = np.array([1.0, np.nan, -1.0, 0.0], np.float32)
    step, _, _ = one_step(OPS["log"], [x], {})
    verdict = judge(step, [x], execute(OPS["log"], [x], {}), 0)
    assert (verdict.count, verdict.own, verdict.carried) == (3, 2, (0,))
    assert sorted(verdict.rules) == [("log of 0", 1), ("log of a negative number", 1)]


def test_large_results_are_judged_by_a_sample():
    x = np.linspace(-1, 1, 1 << 20, dtype=np.float32)
    x[0] = np.nan
    step, _, _ = one_step(OPS["sqrt"], [x], {})
    verdict = judge(step, [x], execute(OPS["sqrt"], [x], {}), 0)
    assert verdict.count == 1 << 19
    assert verdict.own == pytest.approx((1 << 19) - 1, rel=0.01)
    assert verdict.elements[0].place == (1,)
    assert len(verdict.elements) == 8


def test_nothing_is_said_of_what_is_finite_or_no_float():
    x = np.array([1, 2], np.int32)
    step, _, _ = one_step(OPS["add"], [x, x], {})
    assert judge(step, [x, x], [x + x], 0) is None
    y = x.astype(np.float32)
    assert judge(step, [y, y], [y + y], 0) is None


@pytest.mark.parametrize("name", sorted(OPS))
def test_what_is_said_to_have_no_faults_has_none(name):
    """Finite operands, however large, give finite results."""
    op = OPS[name]
    if (
        op.may_fault()
        or op.traits.host
        or op.traits.moves
        or len(op.operands) > 2
        or not op.operands
    ):
        return
    attrs = {"low": -1.0} if name == "clip" else {}
    attrs |= {"axis": 0} if any(a.name == "axis" and a.required for a in op.attrs) else {}
    windows = next((a.name for a in op.attrs if a.name in ("kernel", "output_size")), None)
    shape = (7,)
    if windows:
        axes = next((n for n in (1, 3) if f"{n}d" in name), 2)
        shape, attrs[windows] = (1, 2, *[3] * axes), (2,) * axes
    values = np.array([0.0, -0.0, 1.0, -1.0, 3e38, -3e38, 1e-45], np.float32)
    arrays = [np.resize(np.roll(values, k), shape) for k, _ in enumerate(op.operands)]
    for result in execute(op, arrays, complete(op, attrs)):
        assert result.dtype.kind != "f" or np.isfinite(result).all()
