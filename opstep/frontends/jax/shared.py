"""What all graphs of one import share: names, named tensors, and what is missing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from opstep.frontends.jax.values import Known
from opstep.frontends.missing import Missing
from opstep.frontends.statements import unique
from opstep.runtime.ir.graph import Declaration, Graph, Name
from opstep.runtime.ir.lexer import identifier
from opstep.runtime.ir.op import OPS
from opstep.runtime.ir.types import TensorType
from opstep.runtime.transforms.builder import Var


class Shared:
    """`values`: those of named tensors; `symbols`: of sizes."""

    def __init__(self, taken: Iterable[str]):
        self.declared: dict[str, Declaration] = {}
        self.values: dict[str, np.ndarray] = {}
        self.graphs: list[Graph] = []
        self.missing: list[Missing] = []
        self.left_out: set[tuple[str, int]] = set()  # lines of what is not run, such as prints
        self.symbols: set[str] = set()
        self.names = {"main", *OPS, *taken}  # of graphs
        self.reserved: set[str] = set()  # names that no value has
        self.seen: set[str] = set()  # names of values, in any graph
        self.called: dict[Any, Any] = {}  # graphs by what they are of
        self._constants: dict[tuple, Var] = {}

    def reserve(self, symbols: Iterable[str]) -> None:
        """Names of sizes, which no value has."""
        self.symbols.update(symbols)
        self.reserved.update(symbols)

    def graph_name(self, title: str) -> str:
        """A name that no other graph has."""
        return unique(identifier(title.strip("_<>")) or "graph", self.names)

    def declare(self, wanted: str, type: TensorType, value: np.ndarray | None) -> Var:
        """A named tensor: a param where it may be trained, else a state."""
        stem = name = wanted
        k = 1
        while name in self.declared or name in self.seen or name in self.symbols:
            k += 1
            name = f"{stem}_{k}"
        self.reserved.add(name)
        kind = "param" if type.dtype.is_float else "state"
        self.declared[name] = Declaration(kind, Name(name), type, None)
        if value is not None:
            self.values[name] = value
        return Var(name, type)

    def constant(self, value: Known) -> Var:
        """A value that is known as a named tensor; those with the same elements are one."""
        key = value.name, *value.key
        if key not in self._constants:
            elements = value.elements
            self._constants[key] = self.declare(value.name or "constant", value.type, elements)
            if not value.is_weight:
                name = self._constants[key].name
                self.declared[name] = Declaration("state", Name(name), value.type, None)
        return self._constants[key]
