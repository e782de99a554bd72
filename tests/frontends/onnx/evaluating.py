"""Programs computed by their ops' oracles, without a kernel: each op in f64, results rounded to
their types.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from oracle import apply

from opstep.api.program import Program
from opstep.runtime.ir.graph import Apply, Assert, Graph, Literal, Name, Return


class Evaluation:
    def __init__(self, program: Program):
        self.program = program
        self.tensors: dict[str, np.ndarray] = {}

    def main(self, inputs: Mapping[str, Any]) -> list[np.ndarray]:
        found = self.program.graph("main")
        self.types = self.program.verified
        return self.run(found, [np.asarray(inputs[b.name.text]) for b in found.inputs])

    def run(self, graph: Graph, inputs: list[np.ndarray]) -> list[np.ndarray]:
        values = {b.name.text: v for b, v in zip(graph.inputs, inputs, strict=True)}
        symbols = {}
        for binding, value in zip(graph.inputs, inputs, strict=True):
            for dim, size in zip(binding.type.shape, value.shape, strict=True):
                if not isinstance(dim, int) and dim.lone_symbol():
                    symbols[dim.lone_symbol()] = size
        applications = self.types.graphs[graph.name.text].applications
        for statement, application in zip(graph.body, applications, strict=True):
            if isinstance(statement, Return):
                return [self.value(v, values) for v in statement.values]
            if isinstance(statement, Assert):
                assert self.value(statement.condition, values)
                continue
            assert isinstance(statement, Apply)
            operands = [self.value(o, values) for o in statement.operands]
            results = self.results(statement, application, operands, symbols)
            for binding, result in zip(statement.results, results, strict=True):
                values[binding.name.text] = result
        return []

    def results(
        self, statement: Apply, application: Any, operands: list[Any], symbols: dict
    ) -> list:
        if application.graph is not None:
            return self.run(application.graph, operands)
        attrs = {a.name.text: a.value for a in statement.attrs}
        graphs = {k: self.program.graph(v.name) for k, v in attrs.items() if k in _GRAPHS}
        match statement.callee.text:
            case "cond":
                chosen = graphs["then" if operands[0] else "else"]
                return self.run(chosen, operands[1:])
            case "while":
                types = [b.type.dtype.numpy for b in graphs["body"].inputs]
                operands = [np.asarray(o, t) for o, t in zip(operands, types, strict=True)]
                while self.run(graphs["test"], operands)[0]:
                    operands = self.run(graphs["body"], operands)
                return operands
        concrete = application
        if symbols:
            concrete = _Concrete(application, symbols)
        found = apply(concrete, operands)
        types = application.resolved.results
        with np.errstate(all="ignore"):
            return [np.asarray(v).astype(t.dtype.numpy) for v, t in zip(found, types, strict=True)]

    def value(self, operand: Name | Literal, values: Mapping[str, np.ndarray]) -> Any:
        if isinstance(operand, Literal):
            return operand.value
        if operand.text in values:
            return values[operand.text]
        if operand.text not in self.tensors:
            self.tensors[operand.text] = self.program.params[operand.text]
        return self.tensors[operand.text]


_GRAPHS = ("then", "else", "test", "body")


class _Concrete:
    """An op whose attributes have numbers in place of symbols."""

    def __init__(self, application: Any, symbols: Mapping[str, int]):
        from opstep.runtime.ir.dims import evaluate

        def concrete(v: Any) -> Any:
            if isinstance(v, tuple | list):
                return type(v)(concrete(e) for e in v)
            return evaluate(v, dict(symbols)) if hasattr(v, "symbols") else v

        self.op, self.resolved = application.op, application.resolved
        self.attrs = {k: concrete(v) for k, v in application.attrs.items()}
