"""The program of an exported one: its inputs, results, named tensors and their values."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.utils import _pytree as pytree

from opstep.api.inputs import as_array
from opstep.api.program import Program
from opstep.frontends.torch.body import Var
from opstep.frontends.torch.definitions import Definitions
from opstep.frontends.torch.dims import Symbols, dtype_of
from opstep.frontends.torch.drafts import Draft, Value, value_of
from opstep.frontends.torch.errors import FALLBACK, ImportFailed
from opstep.frontends.torch.fallback import is_runnable
from opstep.frontends.torch.naming import identifier
from opstep.frontends.torch.sizes import assert_sizes
from opstep.frontends.torch.translator import Leaves, Translator
from opstep.frontends.torch.writing import Writer
from opstep.kernels.stdlib import library
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.graph import Declaration, Module, Name, Update
from opstep.runtime.ir.parser import parse
from opstep.runtime.ir.printer import print_module
from opstep.runtime.ir.types import TensorType


class Placeholder(NamedTuple):
    """An input of the fx graph: a named tensor, or what the model is given."""

    node: fx.Node
    name: str
    kind: str  # "param", "state" or "input"
    value: Any  # of a named tensor


class Translated(NamedTuple):
    """A program and what it was made from: `exported` has ATen ops only, and `nodes` says which of
    their results a value is, by its site (``main/Block:h/y``).
    """

    program: Program
    exported: ExportedProgram
    nodes: dict[str, Value]


class Translation:
    """One attempt to translate an exported program. `leaves`: see `Translator`."""

    def __init__(
        self, exported: ExportedProgram, symbols: Symbols, model: Any = None,
        leaves: Leaves | None = None,
    ):  # fmt: skip
        self._fallback = None if leaves is None else "torch"
        self._exported = exported
        self._model = model  # where it is at hand: its `forward` names the arguments
        self._symbols = symbols
        self._inputs = list(placeholders(exported))
        graph = exported.graph
        for found in self._inputs:
            if found.kind != "input":
                found.node.meta["named"] = found.name
        nodes = {n.name: n for n in graph.nodes}
        specs = [s for s in exported.graph_signature.output_specs if s.arg.name in nodes]
        specs = [s for s in specs if isinstance(nodes[s.arg.name].meta.get("val"), torch.Tensor)]
        self._specs = specs
        outputs = [value_of(nodes[s.arg.name]) for s in specs]
        tries = model is not None  # a file has none of PyTorch's kernels run
        self._translator = Translator(graph, symbols, outputs, leaves=leaves, tries=tries)
        self._tensors = [i for i in self._inputs if isinstance(i.node.meta["val"], torch.Tensor)]
        self._main = self._translator.translate([Value(i.node) for i in self._tensors], outputs)

    @property
    def is_complete(self) -> bool:
        """Whether all ops were translated."""
        return not self._translator.missing

    def blamed(self, replaced: Collection[Any]) -> set[Any]:
        """Those of the ops that were replaced whose parts are not all ours."""
        nodes = [*self._translator.left, *(node for node, _ in self._translator.missing)]
        origins = {name for node in nodes for name in _origins(node.meta)}
        return {op for op in replaced if str(op) in origins}

    def missing_targets(self) -> list[Any]:
        return list(self._translator.undefined)

    def finished(self, path: str, definitions: Definitions | None = None) -> Translated:
        """`path` stands in its messages. `definitions`: of ops that were replaced. Raises
        `ImportFailed`.
        """
        if self._translator.missing:
            missing = list(dict(self._translator.missing).values())
            if definitions is not None:
                missing = [definitions.explained(m, m) for m in missing]
            failed = ImportFailed(missing)
            nodes = (n for n, _ in self._translator.missing)
            helps = any(is_runnable(n, self._symbols) for n in nodes)
            raise failed.hinted(FALLBACK if helps and self._fallback is None else "")
        main = self._main
        types = {i.name: dtype_of(i.node.meta["val"].dtype) for i in self._tensors}
        results: list[tuple[str, Var]] = []
        changed: list[tuple[str, Var]] = []  # inputs that the model updates in place
        for spec, value, name in zip(self._specs, main.results, self._result_names(), strict=True):
            if spec.kind is OutputKind.BUFFER_MUTATION:
                updated = main.body.to(value, types[str(spec.target)])
                update = Update(Name(str(spec.target)), Name(updated.name))
                main.body.statements.append(update)  # pyright: ignore[reportArgumentType]
            elif spec.kind is OutputKind.USER_INPUT_MUTATION:
                changed.append((f"{spec.target}_updated", value))
            else:
                results.append((name, value))
        results += changed
        assert_sizes(self._exported, self._model, self._symbols, main.symbols(), main.body)
        main.results = [value for _, value in results]
        program, nodes = self._written(main, [name for name, _ in results], path)
        for found in self._tensors:
            if found.kind != "input":
                program.params[found.name] = _value(found)
        program.example = self._example([b.name.text for b in program.graphs["main"].inputs])
        return Translated(program, self._exported, nodes)

    def _written(
        self, main: Draft, results: Sequence[str], path: str
    ) -> tuple[Program, dict[str, Value]]:
        """The program without the values of its tensors, and what its values are in ATen's."""
        values = list(zip(self._tensors, main.inputs, strict=True))
        named = {v.name: i.name for i, v in values if i.kind != "input"}
        wanted = {v.name: i.name for i, v in values if i.kind == "input"}
        names_in_library = {name for module in library() for name in module.graphs}
        writer = Writer(self._translator.drafts, set(named.values()), names_in_library)
        graphs = writer.write(main, named, wanted, results)
        declarations = tuple(
            Declaration(i.kind, Name(i.name), _concrete(i), None)
            for i in self._tensors
            if i.kind != "input"
        )
        text = print_module(Module((*declarations, *graphs)))
        return Program(parse(text, path), self._fallback), writer.nodes(main)

    def _example(self, names: Sequence[str]) -> dict[str, Any]:
        """The example inputs; `names`: what the program calls those that are tensors."""
        leaves = pytree.tree_leaves(self._exported.example_inputs)
        inputs = [i for i in self._inputs if i.kind == "input"]
        if len(leaves) != len(inputs):
            return {}
        pairs = zip(inputs, leaves, strict=True)
        tensors = [v for i, v in pairs if isinstance(i.node.meta["val"], torch.Tensor)]
        return {
            name: as_array(f"input {name}", v.detach().cpu(), dtype_of(v.dtype))
            for name, v in zip(names, tensors, strict=True)
        }

    def _result_names(self) -> Iterator[str]:
        """What the model's outputs are called, by where they are in what it returns."""
        spec = self._exported.call_spec.out_spec
        count = spec.num_leaves if spec is not None else 0
        paths = []
        if spec is not None:
            tree = pytree.tree_unflatten(list(range(count)), spec)
            paths = [_label(p) for p, _ in pytree.tree_flatten_with_path(tree)[0]]
        users = [s for s in self._exported.graph_signature.output_specs
                 if s.kind is OutputKind.USER_OUTPUT]  # fmt: skip
        labels = {id(s): label for s, label in zip(users, paths, strict=False)}
        for spec in self._specs:
            yield labels.get(id(spec), "") or "output"


def _origins(meta: Mapping[str, Any]) -> Iterator[str]:
    """The ops that a node was made of, in the order of their replacement."""
    sources = list(meta.get("from_node") or ())
    while sources:
        source = sources.pop()
        yield str(getattr(source, "target", ""))
        sources += getattr(source, "from_node", None) or ()


def _label(path: Sequence[Any]) -> str:
    """A place in nested outputs as a name: ``logits``, ``past_0``."""
    keys = (getattr(k, "key", getattr(k, "name", getattr(k, "idx", ""))) for k in path)
    return identifier("_".join(map(str, keys)), "output") if path else "output"


def placeholders(exported: ExportedProgram) -> Iterator[Placeholder]:
    """The placeholders, in order."""
    nodes = {n.name: n for n in exported.graph.nodes if n.op == "placeholder"}
    mutated = set(exported.graph_signature.buffers_to_mutate.values())
    for spec in exported.graph_signature.input_specs:
        name = spec.arg.name
        if name not in nodes:
            continue
        node = nodes[name]
        if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
            target = spec.target or name
            value = exported.state_dict.get(target, exported.constants.get(target))
            is_param = spec.kind is InputKind.PARAMETER and target not in mutated
            yield Placeholder(node, target, "param" if is_param else "state", value)
        else:
            yield Placeholder(node, name, "input", None)


def _value(found: Placeholder) -> torch.Tensor:
    """The value of a named tensor, in the host's memory."""
    if found.value is None or found.value.device.type == "meta":
        raise InputError(
            f"{found.kind} {found.name} has no value: it is on the device meta",
            hint="load the model's weights before it is exported",
        )
    return found.value.detach().cpu()


def _concrete(found: Placeholder) -> TensorType:
    value = found.node.meta["val"]
    return TensorType(dtype_of(value.dtype), tuple(int(d) for d in value.shape))
