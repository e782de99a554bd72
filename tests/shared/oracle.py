"""The meaning of a graph: its ops' NumPy oracles, one after the other, floats in float64.

Nothing is rounded to the graph's own types in between, so this is what a device's results are held
against.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from opstep.runtime.ir.graph import Apply, Graph, Literal, Name, Return
from opstep.runtime.ir.types import DType
from opstep.runtime.ir.verified import Application, Verified


def evaluate(
    verified: Verified, graph: str, inputs: Mapping[str, np.ndarray] | Sequence[np.ndarray]
) -> list[np.ndarray]:
    """The results of a graph of ops and calls (no control flow, no named tensors)."""
    found = verified.graphs[graph].graph
    if not isinstance(inputs, Mapping):
        inputs = {b.name.text: a for b, a in zip(found.inputs, inputs, strict=True)}
    return _Evaluation(verified).run(found, inputs)


def widened(array: np.ndarray, dtype: DType) -> np.ndarray:
    """As an oracle sees an operand that was promoted to `dtype`."""
    return np.asarray(array).astype(np.float64 if dtype.is_float else dtype.numpy)


def apply(application: Application, operands: Sequence[np.ndarray | float]) -> list[np.ndarray]:
    """The results of one op; floats in float64, integers in their type."""
    op, resolved = application.op, application.resolved
    assert op is not None
    given = [(o, t.dtype) for o, t in zip(operands, resolved.operands, strict=False) if t]
    arrays = [np.asarray(o).astype(t.numpy) if op.traits.bits else widened(o, t) for o, t in given]
    with np.errstate(all="ignore"):
        results = op.oracle(*arrays, **application.attrs)
        results = results if isinstance(results, tuple) else (results,)
        return [widened(r, t.dtype) for r, t in zip(results, resolved.results, strict=True)]


class _Evaluation:
    def __init__(self, verified: Verified):
        self.verified = verified

    def run(self, graph: Graph, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        values = dict(inputs)
        applications = self.verified.graphs[graph.name.text].applications
        for statement, application in zip(graph.body, applications, strict=True):
            if isinstance(statement, Return):
                return [values[v.text] for v in statement.values]
            assert isinstance(statement, Apply), "control flow and updates have no oracle"
            operands = [self._look_up(o, values) for o in statement.operands]
            if application.graph is not None:
                names = [b.name.text for b in application.graph.inputs]
                results = self.run(application.graph, dict(zip(names, operands, strict=True)))
            else:
                results = apply(application, operands)
            for binding, result in zip(statement.results, results, strict=True):
                values[binding.name.text] = result
        return []

    def _look_up(self, operand: Name | Literal, values: Mapping[str, np.ndarray]):
        return operand.value if isinstance(operand, Literal) else values[operand.text]
