"""What all graphs of one import share: names, named tensors, and what is missing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from opstep.runtime.ir.graph import Declaration, Graph
from opstep.runtime.ir.op import OPS


class SharedNames:
    """`declared`: named tensors; `missing`: what could not be translated; `called`: graphs by what
    they are of; `symbols`: of sizes.
    """

    def __init__(self, taken: Iterable[str]):
        """`taken`: names that no graph has."""
        self.declared: dict[str, Declaration] = {}
        self.graphs: list[Graph] = []
        self.missing: list[Any] = []
        self.symbols: set[str] = set()
        self.names = {"main", *OPS, *taken}  # of graphs
        self.reserved: set[str] = set()  # names that no value has: of tensors and symbols
        self.seen: set[str] = set()  # names of values, in any graph
        self.called: dict[Any, Any] = {}

    def tensor_name(self, wanted: str) -> str:
        """A name that no value and no other tensor has; no value has it from now on."""
        name, k = wanted, 1
        while name in self.declared or name in self.seen or name in self.symbols:
            k += 1
            name = f"{wanted}_{k}"
        self.reserved.add(name)
        return name
