"""The program of a model: its inputs, results and named tensors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from opstep.api.program import Program
from opstep.frontends.onnx import (
    control,  # noqa: F401 - registers what it translates
)
from opstep.frontends.onnx.errors import ImportFailed, Missing, Untranslatable
from opstep.frontends.onnx.naming import readable
from opstep.frontends.onnx.products import with_folded_transposes
from opstep.frontends.onnx.qdq import in_integers
from opstep.frontends.onnx.reading import Weights, check
from opstep.frontends.onnx.repeats import find_blocks
from opstep.frontends.onnx.rules import all_rules
from opstep.frontends.onnx.scope import Broken
from opstep.frontends.onnx.shared import DOMAINS, Shared
from opstep.frontends.onnx.translator import Scope
from opstep.frontends.onnx.types import DTYPES, name_of
from opstep.frontends.onnx.values import Known, known, weight
from opstep.frontends.statements import by_calls, unique
from opstep.kernels.stdlib import library
from opstep.runtime.ir import types
from opstep.runtime.ir.dims import Dim, symbol
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.graph import Module
from opstep.runtime.ir.lexer import RESERVED
from opstep.runtime.ir.op import OPS
from opstep.runtime.ir.parser import parse
from opstep.runtime.ir.printer import print_module
from opstep.runtime.ir.types import TensorType
from opstep.runtime.transforms.builder import Var

if TYPE_CHECKING:
    from onnx import ModelProto, ValueInfoProto

NEWEST = 28  # of the versions of ONNX's operators, those that this was made for
KINDS = {  # of values that have no counterpart
    "sequence_type": "sequences", "map_type": "maps", "optional_type": "optional values",
    "sparse_tensor_type": "sparse tensors",
}  # fmt: skip


def program_of(
    model: ModelProto, path: str, file: Path | None, constants: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]] | None = None, given: Mapping[str, Any] | None = None,
    flat: bool = False,
) -> Program:  # fmt: skip
    """`file`: where the model is, None where it is in memory; `path` stands in messages. `shapes`:
    of inputs, in place of those that the model names; `given`: elements of inputs that are used
    where a shape cannot be told without; `flat`: each node is written out as it stands.
    """
    check(model, path)
    all_rules()
    return _Import(model, path, file, constants, shapes or {}, given or {}).program(flat)


def opened(model: ModelProto, file: Path) -> tuple[Program, dict[str, str]]:
    """A program that gives every tensor of a model, each node as it stands, and what the values of
    the file are called in it. Those that it computes at import are none, sizes mostly.
    """
    check(model, str(file))
    all_rules()
    found = _Import(model, str(file), file, {}, {}, {})
    return found.program(True, opened=True), found.values


class _Import:
    def __init__(
        self, model: ModelProto, path: str, file: Path | None, constants: Mapping[str, Any],
        shapes: Mapping[str, tuple[int, ...]], given: Mapping[str, Any],
    ):  # fmt: skip
        self.model, self.path, self.graph = model, path, model.graph
        self.constants, self.shapes = constants, shapes
        self.weights = Weights(file)
        versions = {DOMAINS.get(o.domain, o.domain): o.version for o in model.opset_import}
        version = versions.setdefault("", 1)
        if version > NEWEST:
            raise InputError(
                f"{path}: version {version} of the operators is not known: {NEWEST} is the newest",
                hint="convert it: onnx.version_converter.convert_version",
            )
        functions = {(f.domain, f.name): f for f in model.functions}
        names = {name for module in library() for name in module.graphs}
        folder = file.parent if file else None
        self.shared = Shared(
            path, folder, self.weights, {k: np.asarray(v) for k, v in given.items()}, functions,
            versions, names,
        )  # fmt: skip
        self.symbols: dict[str, str] = {}
        self.values: dict[str, str] = {}

    def program(self, flat: bool, opened: bool = False) -> Program:
        graph, shared = self.graph, self.shared
        initializers = {t.name for t in graph.initializer}
        inputs = [i for i in graph.input if i.name not in initializers]
        unknown = self.constants.keys() - {i.name for i in inputs}
        if unknown:
            listed = ", ".join(sorted(unknown))
            raise InputError(f"{self.path} has no input {listed}")
        typed = [(i.name, self._type(i)) for i in inputs if i.name not in self.constants]
        shared.reserved |= set(self.symbols.values()) | initializers
        shared.symbols = set(self.symbols.values())
        scope = Scope(shared)
        scope.wanted = self._result_names({readable(n) for n, _ in typed})
        scope.body._used_names |= set(scope.wanted.values())
        shared.seen |= set(scope.wanted.values())
        taken = [scope.input(name, type) for name, type in typed]
        for name, value in self.constants.items():
            scope.env[name] = known(np.asarray(value), name=name)
        for tensor in graph.initializer:
            scope.env[tensor.name] = self._weight(tensor, shared)
        nodes = []
        for node in graph.node:  # other names of weights come first: they stand where they may
            is_fixed = node.op_type in ("Constant", "Identity") and all(
                n in scope.env for n in node.input
            )
            is_fixed = is_fixed and not any(isinstance(scope.env[n], Var) for n in node.input)
            if is_fixed and not node.domain:
                scope.nodes([node])
            else:
                nodes.append(node)
        results = [o.name for o in graph.output]
        if opened:
            results += [n for node in graph.node for n in node.output]
        nodes = in_integers(nodes, results, scope.env.get)
        types = {n: v.type for n, v in scope.env.items() if isinstance(v, Known)}
        if not flat:
            nodes = with_folded_transposes(nodes, results)
        scope.blocks(nodes, [] if flat else find_blocks(nodes, types, results))
        if shared.missing:
            raise ImportFailed(self.path, shared.missing)
        returned = self._returned(scope, scope.wanted)
        if opened:
            returned += self._others(scope, {v.name for v in taken}, {v.name for v in returned})
        ours = self.model.producer_name == "opstep"
        scope.finish("main", returned, taken, graph.doc_string if ours else "")
        order = by_calls({g.name.text: g for g in shared.graphs})
        text = print_module(Module((*shared.declared.values(), *order)))
        program = Program(parse(text, f"<{Path(self.path).name.strip('<>')}>"))
        program.files = self.weights
        return program

    def _weight(self, tensor: Any, shared: Shared) -> Known:
        try:
            return weight(tensor, shared.folder)
        except InputError as error:
            message = error.diagnostics[0].message
            shared.missing.append(Missing("initializer", message, f"tensor {tensor.name}"))
            return known(np.zeros(0))

    def _type(self, value: ValueInfoProto) -> TensorType:
        """Of an input. Raises `InputError`."""
        kind = value.type.WhichOneof("value")
        where = f"{self.path}: input {value.name}"
        if kind != "tensor_type":
            raise InputError(
                f"{where}: {KINDS.get(str(kind), 'values without a type')} are not imported"
            )
        tensor = value.type.tensor_type
        if tensor.elem_type not in DTYPES:
            raise InputError(f"{where}: {name_of(tensor.elem_type)} has no counterpart here")
        dtype = DTYPES[tensor.elem_type]
        if value.name in self.shapes:
            return TensorType(dtype, self.shapes[value.name])
        if not tensor.HasField("shape"):
            raise InputError(f"{where} has no shape", hint="infer it: onnx.shape_inference")
        dims = tuple(self._dim(d, f"{value.name}_{k}") for k, d in enumerate(tensor.shape.dim))
        return TensorType(dtype, dims)

    def _dim(self, dim: Any, place: str) -> Dim:
        if dim.HasField("dim_value"):
            if dim.dim_value < 0:
                raise InputError(f"{self.path}: a size of {dim.dim_value}")
            return dim.dim_value
        wanted = dim.dim_param or place
        if wanted not in self.symbols:
            taken = {
                *self.symbols.values(),
                *types.DTYPES,
                *RESERVED,
                *(i.name for i in self.graph.input),
            }
            self.symbols[wanted] = unique(readable(wanted), taken)
        return symbol(self.symbols[wanted])

    def _result_names(self, taken: set[str]) -> dict[str, str]:
        """What the results are called."""
        found: dict[str, str] = {}
        used = taken | self.shared.reserved
        for output in self.graph.output:
            kind = output.type.WhichOneof("value")
            if kind in KINDS:
                raise InputError(
                    f"{self.path}: output {output.name}: {KINDS[kind]} are not imported"
                )
            found[output.name] = unique(readable(output.name), used)
        return found

    def _returned(self, scope: Scope, names: Mapping[str, str]) -> list[Var]:
        found: list[Var] = []
        for output in self.graph.output:
            try:
                var, name = scope.var(scope.look_up(output.name)), names[output.name]
            except (Broken, Untranslatable):
                raise InputError(f"{self.path}: nothing gives the output {output.name}") from None
            if var.name != name:
                var = scope.body.apply(OPS["identity"], (var,), {}, name)
            self._check_result(output, var)
            found.append(var)
        return found

    def _others(self, scope: Scope, taken: set[str], there: set[str]) -> list[Var]:
        """All tensors that are neither inputs nor `there`."""
        self.values = dict(scope.wanted)
        found: dict[str, Var] = {}
        for name in (n for node in self.graph.node for n in node.output):
            value = scope.env.get(name)
            if name not in self.values and isinstance(value, Var) and value.name not in taken:
                self.values[name] = value.name
                if value.name not in there:
                    found[value.name] = value
        return list(found.values())

    def _check_result(self, output: ValueInfoProto, found: Var) -> None:
        """The model's word on a result has to fit."""
        tensor = output.type.tensor_type
        if tensor.elem_type in DTYPES and DTYPES[tensor.elem_type] is not found.dtype:
            wanted = DTYPES[tensor.elem_type]
            raise InputError(f"{self.path}: output {output.name} is {found.dtype}, not {wanted}")
        if not tensor.HasField("shape") or self.shapes or self.constants:
            return
        dims = [d.dim_value if d.HasField("dim_value") else None for d in tensor.shape.dim]
        fits = len(dims) == found.type.rank and all(
            d is None or not isinstance(own, int) or d == own
            for d, own in zip(dims, found.shape, strict=True)
        )
        if not fits:
            shape = [d.dim_value or d.dim_param or "?" for d in tensor.shape.dim]
            raise InputError(
                f"{self.path}: output {output.name} is {found.type}, but the model says {shape}"
            )
