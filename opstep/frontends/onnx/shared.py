"""What all graphs of one import share: names, named tensors, and what is missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opstep.frontends.onnx.naming import readable
from opstep.frontends.onnx.origins import Origins
from opstep.frontends.onnx.values import Known
from opstep.frontends.statements import unique
from opstep.runtime.ir.graph import Declaration, Graph, Name
from opstep.runtime.ir.op import OPS
from opstep.runtime.transforms.builder import Var

if TYPE_CHECKING:
    import numpy as np
    from onnx import FunctionProto

    from opstep.frontends.onnx.errors import Missing
    from opstep.frontends.onnx.reading import Weights

DOMAINS = {"ai.onnx": ""}


class Shared:
    """`given`: elements of inputs that may be used at import; `used_given`: those that were.

    `functions`: those of the model, by domain and name. `versions`: of the operators, by domain.
    """

    def __init__(
        self, path: str, folder: Path | None, weights: Weights, given: Mapping[str, np.ndarray],
        functions: Mapping[tuple[str, str], FunctionProto], versions: Mapping[str, int],
        taken: Iterable[str],
    ):  # fmt: skip
        self.path, self.folder, self.weights, self.given = path, folder, weights, given
        self.functions, self.versions = functions, versions
        self.declared: dict[str, Declaration] = {}
        self.graphs: list[Graph] = []
        self.missing: list[Missing] = []
        self.used_given: set[str] = set()  # inputs whose elements were used at import
        self.names = {"main", *OPS, *taken}  # of graphs
        self.reserved: set[str] = set()  # names that no value has: of tensors and symbols
        self.seen: set[str] = set()  # names of values, in any graph
        self.called: dict[tuple, tuple[str, Any]] = {}  # graphs of functions, by what they take
        self.calling: list[tuple[str, str]] = []  # functions that are being written
        self.written = 0  # nodes
        self.origins = Origins()
        self._constants: dict[tuple, Var] = {}

    def graph_name(self, title: str) -> str:
        """A name that no other graph has."""
        return unique(readable(title), self.names)

    def tensor(self, value: Known) -> Var:
        """A value that is known as a named tensor: an initializer has its name, and of constants
        those with the same elements are one.
        """
        if value.made is None:
            is_constant = value.tensor is None
            value.made = self._constants.get(value.key) if is_constant else None
        if value.made is None:
            name = self._tensor_name(value.name or "constant")
            value.made = Var(name, value.type)
            kind = "param" if value.is_weight and value.type.rank else "state"
            self.declared[name] = Declaration(kind, Name(name), value.type, None)
            self.weights.add(name, value.elements if value.tensor is None else value.tensor)
            if value.tensor is None:
                self._constants[value.key] = value.made
        return value.made

    def _tensor_name(self, wanted: str) -> str:
        """A name that no value and no other tensor has."""
        stem = name = "".join(c if c.isprintable() and c != "`" else "_" for c in wanted)
        k = 1
        while name in self.declared or name in self.seen or name in self.symbols:
            k += 1
            name = f"{stem}_{k}"
        self.reserved.add(name)
        return name

    symbols: set[str] = set()
