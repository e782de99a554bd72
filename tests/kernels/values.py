"""What op tests do with values: run a graph op by op, hold results against the oracle."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from cases import Case

from opstep.api.program import Program
from opstep.runtime.device.payload import payload
from opstep.runtime.ir.graph import Apply, Literal, Name, Return
from opstep.runtime.ir.types import dtype_of
from opstep.runtime.ir.verified import Application, VerifiedGraph
from opstep.runtime.transforms.composite import Composite, definition

Execute = Callable[[Application, Sequence[np.ndarray]], Sequence[np.ndarray]]


def op_by_op(
    made: Program, case: Case, given: Mapping[str, np.ndarray], execute: Execute
) -> list[np.ndarray]:
    """The results of a test graph whose ops are run by `execute`."""
    values = dict(given)
    for statement, application in statements(made, case):
        if isinstance(statement, Return):
            return [values[v.text] for v in statement.values]
        assert isinstance(statement, Apply)
        assert application
        operands = [
            np.asarray(o.value, t.dtype.numpy) if isinstance(o, Literal) else values[o.text]
            for o, t in zip(statement.operands, application.resolved.operands, strict=False)
            if t
        ]
        results = execute(application, operands)
        for binding, result in zip(statement.results, results, strict=True):
            values[binding.name.text] = result
    return []


def statements(made: Program, case: Case) -> Iterator[tuple]:
    """(statement, its application) of a test graph; those of the graph of a composite where a
    device has no kernel for it.
    """
    return flattened(made.verified.graphs[case.graph.name.text], {})


def flattened(checked: VerifiedGraph, named: dict[str, Name | Literal], prefix="") -> Iterator:
    """`named`: what stands for names of the graph; all others get the prefix."""

    def renamed(names: Sequence[Any]) -> tuple:
        return tuple(named.get(n.text, n) if isinstance(n, Name) else n for n in names)

    for statement, application in zip(checked.graph.body, checked.applications, strict=True):
        if isinstance(statement, Return):
            yield replace(statement, values=renamed(statement.values)), application
            return
        operands = renamed(statement.operands)
        results = [b.name.text for b in statement.results]
        if (inner := called(application)) is not None:
            given = dict(zip((b.name.text for b in inner.graph.inputs), operands, strict=True))
            *body, (last, _) = flattened(inner, given, f"{prefix}{results[0]}.")
            yield from body
            named |= zip(results, last.values, strict=True)
            continue
        if prefix:
            named |= {name: Name(prefix + name) for name in results}
        bound = tuple(replace(b, name=named.get(b.name.text, b.name)) for b in statement.results)
        yield replace(statement, operands=operands, results=bound), application


def called(application: Application | None) -> VerifiedGraph | None:
    """The graph of a composite that is called on a device."""
    op: Any = application and application.op
    if application is None or op is None or not issubclass(op, Composite):
        return None
    types, attrs = application.resolved.operands, dict(application.attrs)
    if all(op.has_kernel(gpu, types, attrs) for gpu in (False, True)):
        return None
    return definition(op, types, attrs).graphs[op.name]


def compare(got: np.ndarray, want: np.ndarray, tol: float) -> None:
    """NaN and infinities where the oracle has them, once rounded to the type; else within `tol`."""
    if not tol:
        np.testing.assert_array_equal(got, want)
        return
    with np.errstate(all="ignore"):
        rounded = want.astype(got.dtype).astype(np.float64)
    actual = got.astype(np.float64)
    finite = np.isfinite(rounded)
    np.testing.assert_array_equal(actual[~finite], rounded[~finite])
    largest = np.abs(want[finite]).max(initial=0.0)
    # a subnormal may lose all its digits but the last
    least = {2: 1e-7, 4: 2e-45, 8: 5e-324}[got.dtype.itemsize]
    np.testing.assert_allclose(actual[finite], want[finite], rtol=tol, atol=tol * largest + least)


def same_bits(first: Sequence[np.ndarray], second: Sequence[np.ndarray]) -> None:
    for a, b in zip(first, second, strict=True):
        assert a.dtype == b.dtype
        assert a.tobytes() == b.tobytes()


def all_written(results: Sequence[np.ndarray]) -> None:
    """No element of a float type has the bits of memory never written, which nothing computes."""
    for result in results:
        t = dtype_of(result.dtype)
        if t.is_float:
            pattern = payload(t)
            left = np.ascontiguousarray(result).view(pattern.dtype) == pattern
            assert not left.any(), f"{left.sum()} of {result.size} elements were never written"
