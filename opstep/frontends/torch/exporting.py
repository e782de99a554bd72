"""From a PyTorch module, an `ExportedProgram` or a ``.pt2`` file to a program."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import fx
from torch._decomp import decomposition_table
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.utils import _pytree as pytree

from opstep.api.program import Program
from opstep.frontends.torch.dims import Symbols, dtype_of
from opstep.frontends.torch.errors import ImportFailed
from opstep.frontends.torch.inlining import inline_regions
from opstep.frontends.torch.naming import identifier
from opstep.frontends.torch.rules import all_rules
from opstep.frontends.torch.translator import Draft, Translator, Value
from opstep.frontends.torch.writing import Writer
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.graph import Declaration, Module, Name, Update
from opstep.runtime.ir.types import TensorType

ROUNDS = 4  # of decompositions: each may bring ops that need another


def from_torch(
    model: torch.nn.Module | ExportedProgram | str | Path,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
) -> Program:
    """A program that computes what a PyTorch model computes, with the model's weights.

    `model`: a module, which `torch.export` traces with the example arguments `args` and `kwargs`;
    or an exported program; or the path of a ``.pt2`` file. `dynamic_shapes`: as in
    `torch.export.export`: sizes that are symbols of the program.

    The program's graph `main` takes the model's tensors in order and gives its outputs; each kind
    of module is a graph of its own. Named tensors have the names of the model's `state_dict`.
    `program.example` has the example inputs by name. Raises `InputError` where PyTorch cannot
    export the model, `ImportFailed` where ops of it have no counterpart here.
    """
    return translated(model, args, kwargs, dynamic_shapes=dynamic_shapes).program


class Translation(NamedTuple):
    """A program and what it was made from: `exported` has ATen ops only, and `nodes` says which of
    their results a value is, by its site (``main/Block:h/y``).
    """

    program: Program
    exported: ExportedProgram
    nodes: dict[str, Value]


def translated(
    model: torch.nn.Module | ExportedProgram | str | Path,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
) -> Translation:
    """`from_torch`, with what it found on the way."""
    all_rules()
    exported = _exported(model, args, kwargs, dynamic_shapes)
    names = _symbol_names(exported, dynamic_shapes)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        inline_regions(exported.graph_module)
        lowered = exported.run_decompositions({})
        for _ in range(ROUNDS):
            translation = _Translation(lowered, Symbols(names))
            table = _decompositions(translation.missing_targets())
            if not table:
                break
            lowered = lowered.run_decompositions(table)
    return translation.finished()


def _exported(model: Any, args, kwargs, dynamic_shapes) -> ExportedProgram:
    if isinstance(model, ExportedProgram):
        return model
    if isinstance(model, str | Path):
        return _loaded(Path(model))
    if not isinstance(model, torch.nn.Module):
        raise InputError(f"a {type(model).__name__} is no PyTorch model")
    try:
        with whole_stacks(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.export.export(
                model, tuple(args), dict(kwargs or {}), dynamic_shapes=dynamic_shapes, strict=False
            )
    except Exception as error:  # of any class: what export and the model raise
        raise InputError(f"PyTorch cannot export the model: {_cause(error)}") from error


def _loaded(path: Path) -> ExportedProgram:
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    try:
        return torch.export.load(path)
    except Exception as error:
        raise InputError(f"{path} cannot be read as an exported program: {_cause(error)}") from None


def _cause(error: BaseException) -> str:
    """The first paragraph of a message."""
    text = str(error).strip() or type(error).__name__
    return text.split("\n\n")[0].replace("\n", " ")[:500]


@contextmanager
def whole_stacks() -> Iterator[None]:
    """While the block lasts, traces keep all Python frames from the first `forward` on: without
    it, PyTorch keeps those called `forward`, and what they call is lost.
    """
    from torch.fx.proxy import TracerBase

    name = "_filter_traceback_frames"
    before = getattr(TracerBase, name, None)
    if before is None:  # of a version that filters elsewhere
        yield
        return
    import traceback

    def filtered(self, frames):
        first = next((k for k, f in enumerate(frames) if f.name == "forward"), len(frames))
        return traceback.StackSummary.from_list(frames[first:])

    setattr(TracerBase, name, filtered)
    try:
        yield
    finally:
        setattr(TracerBase, name, before)


def _symbol_names(exported: ExportedProgram, dynamic_shapes: Any) -> dict[str, str]:
    """Names for sympy's symbols: those of the `Dim`s, where there are some."""
    named: dict[str, str] = {}
    nodes = [n for n in exported.graph.nodes if n.op == "placeholder"]
    users = set(exported.graph_signature.user_inputs)
    nodes = [n for n in nodes if n.name in users]
    shapes = pytree.tree_leaves(  # a Dim, a name or None for each axis
        dynamic_shapes, is_leaf=lambda s: s is None or _is_shape(s)
    )
    for node, shape in zip(nodes, shapes, strict=False):
        axes = shape.items() if isinstance(shape, dict) else enumerate(shape or ())
        for axis, dim in axes:
            size = node.meta["val"].shape[axis]
            if isinstance(size, torch.SymInt) and hasattr(dim, "__name__"):
                expression = size.node.expr
                if expression.is_Symbol:
                    named.setdefault(expression.name, identifier(dim.__name__))
    return named


def _is_shape(found: Any) -> bool:
    """Whether it says what the axes of one tensor are, as in ``{0: Dim("batch")}``."""
    if isinstance(found, dict):
        return all(isinstance(k, int) for k in found)
    if not isinstance(found, list | tuple):
        return False
    return all(v is None or isinstance(v, int) or hasattr(v, "__name__") for v in found)


def _decompositions(targets: Sequence[Any]) -> dict[Any, Any]:
    """PyTorch's own definitions of ops that we do not have, where there are some."""
    if not targets:
        return {}
    table = {**decomposition_table, **torch.export.default_decompositions()}
    return {t: table[t] for t in targets if t in table}


class Placeholder(NamedTuple):
    """An input of the fx graph: a named tensor, or what the model is given."""

    node: fx.Node
    name: str
    kind: str  # "param", "state" or "input"
    value: Any  # of a named tensor


def retranslated(exported: ExportedProgram) -> Translation:
    """The translation of a graph of ATen ops that was translated before, and changed."""
    return _Translation(exported, Symbols()).finished()


class _Translation:
    """One attempt to translate an exported program."""

    def __init__(self, exported: ExportedProgram, symbols: Symbols):
        self._exported = exported
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
        probe = Translator(graph, symbols, [])
        outputs = [probe.value(nodes[s.arg.name]) for s in specs]
        self._translator = Translator(graph, symbols, outputs)
        self._tensors = [i for i in self._inputs if isinstance(i.node.meta["val"], torch.Tensor)]
        self._main = self._translator.translate([Value(i.node) for i in self._tensors], outputs)

    def missing_targets(self) -> list[Any]:
        return list(self._translator.undefined)

    def finished(self) -> Translation:
        """Raises `ImportFailed`."""
        if self._translator.missing:
            unique_nodes = dict(self._translator.missing)
            raise ImportFailed(list(unique_nodes.values()))
        main = self._main
        results = list(self._result_names())
        updates, types = [], {i.name: i.node.meta["val"].dtype for i in self._tensors}
        kept, names = [], []
        for spec, value, name in zip(self._specs, main.results, results, strict=True):
            if spec.kind is OutputKind.BUFFER_MUTATION:
                dtype = dtype_of(types[spec.target or ""])
                updates.append((spec.target, main.body.to(value, dtype)))
            else:
                kept.append(value)
                names.append(name)
        return _assembled(self, main, updates, kept, names)

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


def _assembled(
    translation: _Translation, main: Draft, updates: Sequence, kept: Sequence, names: Sequence[str]
) -> Translation:
    from opstep.kernels.stdlib import library

    inputs = translation._tensors
    values = dict(zip((i.name for i in inputs), main.inputs, strict=True))
    named = {values[i.name].name: i.name for i in inputs if i.kind != "input"}
    wanted = {values[i.name].name: i.name for i in inputs if i.kind == "input"}
    main.results = list(kept)
    for target, value in updates:
        main.body.statements.append(Update(Name(target), Name(value.name)))  # pyright: ignore
    names_in_library = {name for module in library() for name in module.graphs}
    writer = Writer(translation._translator.drafts, set(named.values()), names_in_library)
    graphs = writer.write(main, named, wanted, names)
    declarations = tuple(
        Declaration(i.kind, Name(i.name), _concrete(i), None) for i in inputs if i.kind != "input"
    )
    program = Program(Module((*declarations, *graphs)))
    for found in inputs:
        if found.kind != "input" and found.value is not None:
            program.params[found.name] = found.value.detach()
    return Translation(program, translation._exported, writer.nodes(main))


def _concrete(found: Placeholder) -> TensorType:
    value = found.node.meta["val"]
    return TensorType(dtype_of(value.dtype), tuple(int(d) for d in value.shape))
