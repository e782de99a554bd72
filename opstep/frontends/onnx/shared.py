"""What all graphs of one import share: names, named tensors, and what is missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from opstep.frontends.onnx.naming import readable
from opstep.frontends.onnx.origins import Origins
from opstep.frontends.onnx.values import Known
from opstep.frontends.shared import SharedNames
from opstep.frontends.statements import unique
from opstep.runtime.ir.graph import Declaration, Name
from opstep.runtime.transforms.builder import Var

if TYPE_CHECKING:
    import numpy as np
    from onnx import FunctionProto

    from opstep.frontends.onnx.reading import Weights

DOMAINS = {"ai.onnx": ""}


class Shared(SharedNames):
    """`given`: elements of inputs that may be used at import; `used_given`: those that were.

    `functions`: those of the model, by domain and name. `versions`: of the operators, by domain.
    """

    def __init__(
        self, path: str, folder: Path | None, weights: Weights, given: Mapping[str, np.ndarray],
        functions: Mapping[tuple[str, str], FunctionProto], versions: Mapping[str, int],
        taken: Iterable[str],
    ):  # fmt: skip
        super().__init__(taken)
        self.path, self.folder, self.weights, self.given = path, folder, weights, given
        self.functions, self.versions = functions, versions
        self.used_given: set[str] = set()  # inputs whose elements were used at import
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
            wanted = value.name or "constant"
            printable = (c if c.isprintable() and c != "`" else "_" for c in wanted)
            name = self.tensor_name("".join(printable))
            value.made = Var(name, value.type)
            kind = "param" if value.is_weight and value.type.rank else "state"
            self.declared[name] = Declaration(kind, Name(name), value.type, None)
            self.weights.add(name, value.elements if value.tensor is None else value.tensor)
            if value.tensor is None:
                self._constants[value.key] = value.made
        return value.made
