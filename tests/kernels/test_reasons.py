"""Every op says why its NaNs and infinities are there: its test graphs on numbers that make some.

``--rounds N`` draws N sets of operands for each graph instead of few.
"""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from cases import cases, inputs, program
from values import statements

from opstep.runtime.device.cpu.device import execute
from opstep.runtime.device.single import one_step
from opstep.runtime.ir.faults import UNKNOWN
from opstep.runtime.ir.graph import Apply, Literal
from opstep.runtime.ir.op import OPS, complete
from opstep.runtime.nan.verdict import FINITE, INFINITE, INFINITIES, judge

ODD = (0.0, -0.0, np.inf, -np.inf, -1.0, 1e30, 1e-30, np.nan, 1.0, 3e4, -3.3e38, 3.3e38)
PATIENCE = 10  # rounds until an op has to have been asked for a reason
CASES: dict[str, list] = {}
for case in cases():
    CASES.setdefault(case.file, []).append(case)
# of those that may give an infinity, the ones that do so for no such operands
NEVER = {
    "all_reduce",  # of one rank
    "elu",
    "eye",
    "iota",
    "leaky_relu",
    "normal",
    "one_hot",
    "reduce_scatter",
    "softplus",
    "sort",
    "top_k",
    "uniform",
}


def awkward(rng, array):
    """Some, or all, of its elements are few numbers that make NaNs and infinities."""
    if array.dtype.kind in "iub":
        return array
    some, share = rng.choice(ODD, rng.integers(1, 4)), rng.choice([0.0, 0.15, 0.5, 1.0])
    some = some if rng.random() < 0.8 else ODD[-2:]
    with np.errstate(all="ignore"):
        mixed = np.where(rng.random(array.shape) < share, rng.choice(some, array.shape), array)
        return mixed.astype(array.dtype)


def judged(case, dtype, rng):
    """(op, bad elements) of the floats that the ops of a test graph made of awkward operands."""
    values = dict(inputs(case, dtype))
    for statement, application in statements(program(case.id, dtype), case):
        if not isinstance(statement, Apply):
            return
        given = [
            np.asarray(o.value, t.dtype.numpy) if isinstance(o, Literal) else values[o.text]
            for o, t in zip(statement.operands, application.resolved.operands, strict=False)
            if t
        ]
        given = [awkward(rng, a) for a in given]
        attrs = dict(application.attrs)
        if "epsilon" in attrs and rng.random() < 0.6:
            attrs["epsilon"] = 0.0
        results = execute(application.op, given, attrs)
        step, _, _ = one_step(application.op, given, attrs)
        operands = [*given, *[None] * (len(step.operand_types) - len(given))]
        for k, (binding, result) in enumerate(zip(statement.results, results, strict=True)):
            values[binding.name.text] = result
            if result.dtype.kind not in "iub":
                verdict = judge(step, operands, results, k)
                yield application.op, given, verdict.elements if verdict else ()


def is_explained(op, given, element) -> bool:
    if element.rule == FINITE or element.exact is None:
        return False
    values = [b.value for b in element.blamed]
    infinite = bool(np.isinf(values).any())
    if element.rule in (INFINITIES, INFINITE):  # only where f64 has another order than the kernel
        if op.faults is UNKNOWN:  # then no element is blamed
            values = np.concatenate([a.ravel() for a in given if a.dtype.kind not in "iub"])
        return not np.isfinite(values).all() and not np.isnan(element.exact)
    if "overflow" in element.rule or "underflow" in element.rule:
        return not infinite
    return not np.isfinite(element.exact)


@pytest.mark.parametrize("file", CASES)
def test_no_reason_is_missing(file, request):
    silent, number, least = file in OPS, -1, request.config.getoption("--rounds")
    while (number := number + 1) < least or (silent and number < PATIENCE):
        for case in CASES[file]:
            dtypes = [d for d in ("f32", "f16", "bf16", "f64") if d in case.dtypes]
            rng = np.random.default_rng([number, zlib.crc32(case.id.encode())])
            found = list(judged(case, dtypes[number % len(dtypes)], rng)) if dtypes else []
            silent = silent and any(op.name == file for op, _, _ in found)
            for op, given, element in [(op, g, e) for op, g, elements in found for e in elements]:
                silent = silent and op.name != file
                said = is_explained(op, given, element)
                assert said, f"{op.name} of {case.id}, round {number}: {element}"
    assert not silent or file in NEVER or not OPS[file].may_fault()


INF = np.inf


def grid(*values, shape=None):
    return np.array(values, np.float32).reshape(shape or (len(values),))


UNDER = "underflow of f32 on the way to the result"
EXAMPLES = {
    "einsum": ([grid(INF, 1), grid(0, 1)], {"equation": "i,i->i"}, "0 times infinity"),
    "einsum, opposed": (
        ("einsum", [grid(INF, -INF), grid(1, 1)], {"equation": "i,i->"}, "inf - inf")
    ),
    "mse_loss": ([grid(INF), grid(INF)], {}, "inf - inf"),
    "l1_loss": ([grid(INF), grid(INF)], {}, "inf - inf"),
    "huber_loss": ([grid(INF), grid(INF)], {}, "inf - inf"),
    "kl_div": ([grid(0.5), grid(-1)], {}, "log of a negative number: a target below 0"),
    "group_norm": ([grid(3, 3, shape=(1, 1, 2))], {"groups": 1, "epsilon": 0.0}, "0 / 0"),
    "group_norm_with_statistics": (
        [grid(3, 3, shape=(1, 1, 2))], {"groups": 1, "epsilon": 0.0}, "0 / 0",
    ),
    "layer_norm_with_statistics": (
        [grid(3, 3)], {"shape": (2,), "epsilon": 0.0}, "0 / 0",
    ),
    "scatter_add": ([grid(INF, 1), np.array([0]), grid(-INF)], {}, "inf - inf"),
    "gather_grad": (
        [grid(INF, -INF), np.array([0, 0])], {"size": 2, "axis": 0}, "inf - inf"
    ),
    "conv2d_input_grad": (
        [grid(0, shape=(1, 1, 1, 1)), grid(INF, shape=(1, 1, 1, 1))],
        {"size": (1, 1)}, "0 times infinity",
    ),
    "conv2d_weight_grad": (
        [grid(INF, shape=(1, 1, 1, 1)), grid(0, shape=(1, 1, 1, 1))],
        {"kernel": (1, 1)}, "0 times infinity",
    ),
    "conv_transpose2d": (
        [grid(0, 1, shape=(1, 1, 1, 2)), grid(INF, 1, shape=(1, 1, 1, 2))], {}, "0 times infinity"
    ),
    "upsample2d": (
        [grid(INF, -INF, shape=(1, 1, 1, 2))],
        {"size": (1, 3), "mode": "bilinear"}, "0 times infinity",
    ),
    # by its kernel alone: in f64 some of these are numbers, or infinite
    "upsample2d_grad": (
        [grid(INF, *range(15), shape=(1, 1, 4, 4))],
        {"size": (2, 2), "mode": "bilinear"}, "0 times infinity",
    ),
    "batch_norm_train": (
        [grid(1, 2, 3, shape=(3, 1)), grid(INF), grid(0)], {}, "0 times infinity",
    ),
    "batch_norm_grad": (
        [grid(0, 1, 2, shape=(3, 1)), grid(INF), grid(1, 2, 4, shape=(3, 1)), grid(1), grid(1)],
        {}, "inf - inf",
    ),
    "softmax_grad": ([grid(0.5, 0.5), grid(INF, 1)], {"axis": 0}, "inf - inf"),
    "log_softmax_grad": ([grid(-INF, 0), grid(INF, 0)], {"axis": 0}, "0 times infinity"),
    "rms_norm": ([grid(1e-30, 1e-30, 0)], {"shape": (3,), "epsilon": 0.0}, UNDER),
    "layer_norm": ([grid(1e-30, -1e-30)], {"shape": (2,), "epsilon": 0.0}, UNDER),
    "norm": ([grid(3e38, 3e38)], {}, "overflow of f32"),
}  # fmt: skip


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_reason_of_an_example(example):
    op, arrays, attrs, rule = (example, *EXAMPLES[example])[-4:]
    attrs = complete(OPS[op], attrs)
    results = execute(OPS[op], arrays, attrs)
    step, _, _ = one_step(OPS[op], arrays, attrs)
    operands = [*arrays, *[None] * (len(step.operand_types) - len(arrays))]
    verdict = judge(step, operands, results, 0)
    assert verdict is not None and verdict.elements[0].rule == rule
