"""A model of ONNX in which every value can be seen: what a comparison with other software runs."""

from __future__ import annotations

import linecache
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from opstep.api.origins import portable
from opstep.frontends.onnx.importing import check_installed
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.graph import Apply
from opstep.runtime.ir.printer import print_statement
from opstep.runtime.ir.types import dtype_of

if TYPE_CHECKING:
    from onnx import ModelProto

    from opstep.api.program import Result


class Opened:
    """`program` is the model here, its functions written out, and gives all tensors; `named` is
    what it calls the file's values. Raises `InputError`, `ImportFailed`.
    """

    def __init__(self, path: str | Path):
        check_installed()
        from opstep.frontends.onnx import attributes
        from opstep.frontends.onnx.assembling import opened
        from opstep.frontends.onnx.reading import read

        self.path = Path(path)
        self.model = _flat(read(self.path), self.path)
        self.nodes = list(self.model.graph.node)
        self.outputs = [o.name for o in self.model.graph.output]
        self.program, self.named = opened(self.model, self.path)
        self._constants: dict[str, Any] = {t.name: t for t in self.model.graph.initializer}
        for node in self.nodes:
            if node.op_type == "Constant":
                self._constants[node.output[0]] = attributes.constant(attributes.of(node, None))

    @property
    def inputs(self) -> dict[str, str]:
        """By their names in the file, what the program calls them."""
        initializers = {t.name for t in self.model.graph.initializer}
        own = (b.name.text for b in self.program.graph("main").inputs)
        names = (i.name for i in self.model.graph.input if i.name not in initializers)
        return dict(zip(names, own, strict=True))

    def given(self, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """`inputs`, which have the program's names, by the file's, in the types of the model."""
        typed = {b.name.text: b.type for b in self.program.graph("main").inputs}
        found = {}
        for name, own in self.inputs.items():
            t = typed[own]
            if own not in inputs:
                raise InputError(f"input {own} is missing")
            assert t is not None
            found[name] = np.asarray(inputs[own]).astype(t.dtype.numpy)
        return found

    def values(self, result: Result) -> dict[str, np.ndarray]:
        """What a run of the program gave, by the file's names."""
        return {name: result[own] for name, own in self.named.items()}

    def constant(self, name: str) -> np.ndarray | None:
        """An initializer, or what a node `Constant` holds."""
        from onnx import TensorProto, numpy_helper

        found = self._constants.get(name)
        if isinstance(found, TensorProto):
            return numpy_helper.to_array(found, str(self.path.absolute().parent))
        return None if found is None else np.asarray(found)

    def place(self, name: str) -> dict[str, Any]:
        """What computes a value here, and the line that it was imported from."""
        own = self.named[name]
        for s in self.program.graph("main").body:
            if isinstance(s, Apply) and any(b.name.text == own for b in s.results):
                text = print_statement(replace(s, at=None))
                if len(s.results) > 1:
                    text = f"{own}, … = {text.partition(' = ')[2]}"
                file, line = (s.at.file, s.at.line) if s.at else ("", 0)
                source = linecache.getline(file, line).strip() if line else ""
                file = portable(file) if file else ""
                return {"statement": text, "file": file, "line": line, "source": source}
        return {"statement": "", "file": "", "line": 0, "source": ""}


def type_text(array: np.ndarray) -> str:
    return f"{dtype_of(array.dtype)}[{', '.join(map(str, array.shape))}]"


def _flat(model: ModelProto, path: Path) -> ModelProto:
    """The model with its functions in place of their calls, so that what they compute is seen."""
    from onnx import inliner

    if not model.functions:
        return model
    try:
        return inliner.inline_local_functions(model)
    except Exception as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path}: its functions cannot be written out: {reason[:200]}") from None
