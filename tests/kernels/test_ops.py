"""Every test graph: shapes, values on the CPU for each type, elements written, gradients."""

from __future__ import annotations

import numpy as np
import oracle
import pieces
import pytest
from cases import Case, by_dtype, cases, generator, inputs, program
from values import compare, op_by_op, same_bits

from opstep.api.program import Program
from opstep.runtime.ir.dims import symbol
from opstep.runtime.ir.graph import Apply, Literal, Module, Return
from opstep.runtime.ir.op import Mismatch, resolve
from opstep.runtime.ir.types import TensorType, dtype_of
from opstep.runtime.transforms.grad import grad

CASES = {c.id: c for c in cases()}
WITH_GRADIENT = [c.id for c in CASES.values() if c.wrt]


def pytest_generate_tests(metafunc):
    if "dtype" in metafunc.fixturenames:
        every = metafunc.config.getoption("--every-dtype", default=False)
        metafunc.parametrize("case_id, dtype", by_dtype(every))


def name_of(case: Case) -> str:
    return case.graph.name.text


# --- shapes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("case_id", CASES)
def test_shape(case_id):
    """The verifier's types are those that the graph declares, and those of the oracle's results."""
    case = CASES[case_id]
    dtype = case.dtypes[0]
    made = program(case_id, dtype)
    results = oracle.evaluate(made.verified, name_of(case), inputs(case, dtype))
    declared = made.graphs[name_of(case)].results
    assert [r.shape for r in results] == [t.shape for t in declared]


@pytest.mark.parametrize("case_id", CASES)
def test_symbolic_shape(case_id):
    """With a symbol for each size of the inputs, the rule gives the same shapes once they are
    bound.

    Where the graph's attributes fix a size, symbols cannot stand for it: then the rule refuses.
    """
    case = CASES[case_id]
    made = program(case_id, case.dtypes[0])
    checked = made.verified.graphs[name_of(case)]
    sizes = sorted({d for b in case.graph.inputs if b.type for d in b.type.shape if d > 1})
    symbols = {d: symbol(f"S{d}") for d in sizes}
    values = {
        b.name.text: t.with_shape(symbols.get(d, d) for d in t.shape)
        for b in checked.graph.inputs
        if (t := b.type)
    }
    bound = {f"S{d}": d for d in sizes}
    try:
        for statement, application in zip(checked.graph.body, checked.applications, strict=True):
            if isinstance(statement, Return):
                found = [values[v.text].bind(bound) for v in statement.values]
                assert found == list(checked.graph.results)
            elif isinstance(statement, Apply) and application and application.op:
                types = [
                    o.value if isinstance(o, Literal) else values[o.text]
                    for o in statement.operands
                ]
                results = resolve(application.op, types, dict(application.attrs)).results
                for binding, t in zip(statement.results, results, strict=True):
                    values[binding.name.text] = t
    except Mismatch:
        return


# --- values ---------------------------------------------------------------------------------------


def test_values(case_id, dtype):
    """Against the float64 oracle; the same bits in debug mode, from any cut, from views with
    strides.
    """
    case = CASES[case_id]
    made, given = program(case_id, dtype), inputs(case, dtype)
    expected = oracle.evaluate(made.verified, name_of(case), given)
    result = made.run(name_of(case), given, threads=1)
    for got, want, t in zip(
        result.outputs, expected, made.graphs[name_of(case)].results, strict=True
    ):
        assert TensorType(dtype_of(got.dtype), got.shape) == t
        compare(got, want, case.tolerance(t.dtype) if t.dtype.is_float else 0)
    debugged = made.run(name_of(case), given, threads=1, mode="debug")
    assert debugged.unwritten == []
    same_bits(result.outputs, debugged.outputs)
    same_bits(result.outputs, in_pieces(made, case, given))
    with_strides = {k: strided(a) for k, a in given.items()}
    same_bits(result.outputs, made.run(name_of(case), with_strides, threads=2).outputs)


def strided(array: np.ndarray) -> np.ndarray:
    """The same numbers as a view that is not contiguous."""
    wide = np.repeat(array[..., None], 2, axis=-1)
    return np.asfortranarray(wide)[..., 1]


def in_pieces(made: Program, case: Case, given) -> list[np.ndarray]:
    """The graph op by op, each launch cut into pieces."""
    rng = generator(case)
    return op_by_op(made, case, given, lambda op, operands: pieces.run(op, operands, rng)[0])


# --- gradients ------------------------------------------------------------------------------------

STEP = 1e-5  # of the central difference: its error is near 1e-10, that of rounding near 1e-11
DIRECTIONS = 3


@pytest.mark.parametrize("case_id", WITH_GRADIENT)
def test_gradient(case_id):
    """The transform's graph on the CPU in f64 against central differences of the oracle."""
    case = CASES[case_id]
    made, given = program(case_id, "f64"), inputs(case, "f64")
    name, rng = name_of(case), generator(case)
    with_gradient, seeds = differentiated(made, case, rng)
    found = with_gradient.run("gradient", {**given, **seeds}).outputs[-len(case.wrt) :]

    def loss(**changed) -> float:
        results = oracle.evaluate(made.verified, name, {**given, **changed})
        floats = [r for r in results if r.dtype.kind == "f"]
        return sum(float(np.sum(s * r)) for s, r in zip(seeds.values(), floats, strict=True))

    for wanted, gradient in zip(case.wrt, found, strict=True):
        x = given[wanted]
        assert gradient.shape == x.shape
        for direction in directions(rng, x):
            slope = (
                loss(**{wanted: x + STEP * direction}) - loss(**{wanted: x - STEP * direction})
            ) / (2 * STEP)
            along = float(np.sum(gradient * direction))
            scale = float(np.sum(np.abs(gradient * direction))) + 1.0
            assert abs(slope - along) <= 2e-6 * scale, (wanted, slope, along)


def differentiated(made: Program, case: Case, rng) -> tuple[Program, dict[str, np.ndarray]]:
    """The program with the graph ``gradient``, and random derivatives of a loss by its results."""
    results = made.graphs[name_of(case)].results
    floats = [t for t in results if t.dtype.is_float]
    (graph, *_) = grad(
        made.module, name_of(case), case.wrt, seeded=True, name="gradient", library=made.library
    )
    seeds = {
        b.name.text: rng.standard_normal(t.shape)
        for b, t in zip(graph.inputs[-len(floats) :], floats, strict=True)
    }
    return Program(Module((*made.module.items, graph))), seeds


def directions(rng, x: np.ndarray) -> list[np.ndarray]:
    """Each axis of a small input's space; some random ones of a large one's."""
    if x.size <= 12:
        return list(np.eye(x.size).reshape(x.size, *x.shape))
    return [rng.standard_normal(x.shape) for _ in range(DIRECTIONS)]
