"""What all graphs of one import share: names, named tensors, and what is missing."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from opstep.frontends.jax.values import Known
from opstep.frontends.shared import SharedNames
from opstep.frontends.statements import unique
from opstep.runtime.ir.graph import Declaration, Name
from opstep.runtime.ir.lexer import identifier
from opstep.runtime.ir.types import TensorType
from opstep.runtime.transforms.builder import Var


class Shared(SharedNames):
    """`values`: those of named tensors."""

    def __init__(self, taken: Iterable[str]):
        super().__init__(taken)
        self.values: dict[str, np.ndarray] = {}
        self.left_out: set[tuple[str, int]] = set()  # lines of what is not run, such as prints
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
        name = self.tensor_name(wanted)
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
