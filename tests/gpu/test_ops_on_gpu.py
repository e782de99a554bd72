"""Every test graph on a GPU against the float64 oracle, in async and debug mode; gradients."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import oracle
import pytest
from cases import cases, generator, inputs, program
from test_ops import WITH_GRADIENT, differentiated
from values import all_written, compare, same_bits

from opstep.api.program import Program

CASES = {c.id: c for c in cases()}
BY_DTYPE = [(c.id, dtype) for c in CASES.values() for dtype in c.dtypes]
GUIDE = (Path(__file__).resolve().parents[2] / "docs" / "gpu.md").read_text()
LISTED = max(re.findall(r"\n\n((?:`\w+`\s)+)\n", GUIDE), key=len)  # a paragraph of nothing but ops
EXACT = re.findall(r"`(\w+)`", LISTED)


@pytest.mark.parametrize("case_id, dtype", BY_DTYPE)
def test_values(case_id, dtype):
    """The same bits in debug mode, on one stream, uncaptured, and when run again."""
    case, made = CASES[case_id], Program(program(case_id, dtype).module)
    given, name = inputs(case, dtype), case.graph.name.text
    expected = oracle.evaluate(made.verified, name, given)
    found = made.run(name, given, device="cuda", steps=3).outputs
    all_written(found)
    for got, want, t in zip(found, expected, made.graphs[name].results, strict=True):
        assert got.shape == t.shape
        compare(got, want, case.tolerance(t.dtype) if t.dtype.is_float else 0)
    debugged = made.run(name, given, device="cuda", mode="debug", steps=3)  # the last replayed
    assert debugged.unwritten == []
    same_bits(found, debugged.outputs)
    same_bits(found, made.run(name, given, device="cuda", streams=1, alloc="fresh").outputs)


def without_payloads(array: np.ndarray) -> np.ndarray:
    if array.dtype.kind in "iub":
        return array
    return np.where(np.isnan(array), np.array(np.nan, array.dtype), array)


@pytest.mark.parametrize("case_id, dtype", [c for c in BY_DTYPE if CASES[c[0]].file in EXACT])
def test_same_bits_as_on_the_cpu(case_id, dtype):
    """Of the ops that the guide lists."""
    case, made = CASES[case_id], program(case_id, dtype)
    given, name = inputs(case, dtype), case.graph.name.text
    both = [made.run(name, given, device=device).outputs for device in ("cpu", "cuda")]
    same_bits(*([without_payloads(a) for a in outputs] for outputs in both))


@pytest.mark.parametrize("case_id", WITH_GRADIENT)
def test_gradient(case_id):
    """In f64, beside the CPU, whose gradients are held against differences of the oracle."""
    case = CASES[case_id]
    made, given = program(case_id, "f64"), inputs(case, "f64")
    with_gradient, seeds = differentiated(made, case, generator(case))
    everything = {**given, **seeds}
    wanted = with_gradient.run("gradient", everything).outputs
    found = with_gradient.run("gradient", everything, device="cuda").outputs
    for got, want in zip(found, wanted, strict=True):
        scale = np.abs(want[np.isfinite(want)]).max(initial=0.0) if want.size else 0.0
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-10 * (1 + scale))
