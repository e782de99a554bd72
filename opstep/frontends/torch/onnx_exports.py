"""A file of ONNX beside the PyTorch model that it was exported from: where the numbers part.

The file runs here, the model by PyTorch. Values that are the same by their names (`pairing`) are
compared in the order of the file. Where two are apart, the nodes between this value and the paired
values before it compute it again, from what PyTorch had there, in f64, and so do PyTorch's ops: an
error that came in has no part in that, nor has the software that runs the file.
"""

from __future__ import annotations

import inspect
import linecache
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind

from opstep.api.origins import portable
from opstep.api.settings import RunSettings
from opstep.differing import judging
from opstep.differing.distance import NEAR, Distance, distance_of, scale_of
from opstep.differing.elements import is_float
from opstep.differing.errors import TOLERANCE, error_of
from opstep.differing.models import (
    EXPORT,
    ModelComparison,
    OpDifference,
    OutputErrors,
    Own,
    verdict,
)
from opstep.frontends.onnx.judging import own_error, recomputed
from opstep.frontends.onnx.opened import Opened, type_text
from opstep.frontends.onnx.pairing import Site, pairs_of, sites_of
from opstep.frontends.torch import evaluating
from opstep.frontends.torch import judging as torch_judging
from opstep.frontends.torch.assembling import Translated, placeholders
from opstep.frontends.torch.comparing import module_of
from opstep.frontends.torch.drafts import Value
from opstep.frontends.torch.evaluating import Exact, array_of, tensor_of, value_of
from opstep.frontends.torch.importing import translated
from opstep.frontends.torch.sources import frames_of, last_line
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.types import dtype_of

MANY = 8  # nodes whose operators are listed

Model = torch.nn.Module | ExportedProgram | str | Path


class Part(NamedTuple):
    """The nodes that compute a value, and the values with counterparts that they begin with."""

    nodes: list[Any]
    leaves: list[str]


class Exported(Opened):
    """A file, to be compared with the model that it came from."""

    def module(self, found: Any, name: str) -> torch.nn.Module:
        """A module, or what a function or a class without arguments makes. Raises `InputError`."""
        if not isinstance(found, torch.nn.Module) and callable(found):
            try:
                found = found()
            except Exception as error:  # of any class: it is the user's code
                raise InputError(f"{name}() fails: {type(error).__name__}: {error}") from None
        if not isinstance(found, torch.nn.Module):
            raise InputError(f"{name} is a {type(found).__name__}, and no PyTorch module")
        return found

    def traced(self, model: Model, inputs: Mapping[str, Any]) -> Translated:
        """The model's graph of ATen ops. `inputs`: by the program's names; a module is traced with
        them, by keyword where these are the names that it has for them.
        """
        if not isinstance(model, torch.nn.Module):
            return translated(model, fallback=True)
        arrays = self.given(inputs)
        tensors = {own: tensor_of(arrays[name]) for name, own in self.inputs.items()}
        types = {p.dtype for p in model.parameters() if p.is_floating_point()}
        if len(types) == 1:  # the file may have another
            (dtype,) = types
            tensors = {n: t.to(dtype) if t.is_floating_point() else t for n, t in tensors.items()}
        if tensors.keys() <= inspect.signature(model.forward).parameters.keys():
            return translated(model, (), tensors, fallback=True)
        return translated(model, tuple(tensors.values()), fallback=True)

    def examples(self, model: Translated) -> dict[str, np.ndarray]:
        """The example inputs that the model was saved with, by the program's names."""
        return dict(zip(self.inputs.values(), model.program.example.values(), strict=False))

    def compare(
        self, model: Translated, inputs: Mapping[str, Any], settings: RunSettings = RunSettings(),
        rtol: float | None = None,
    ) -> ModelComparison:  # fmt: skip
        """`inputs`: by the program's names. `rtol`: a relative difference that is rounding, by
        default 8 units in the last place. Raises `InputError`.
        """
        given = self.given(inputs)
        theirs = _run(model, given)
        taken = {own: given[name] for name, own in self.inputs.items()}
        ours = self.values(self.program.run("main", taken, **vars(settings)))
        return _Comparer(self, model, given, ours, theirs, rtol).compared()


def diff_exported(
    path: str | Path, model: Model, inputs: Mapping[str, Any] | None = None, *,
    settings: RunSettings = RunSettings(), rtol: float | None = None,
) -> ModelComparison:  # fmt: skip
    """Runs a file of ONNX here, and by PyTorch the model that it was exported from, and finds the
    first nodes that compute something else.

    `model`: a module, an exported program, or the path of a ``.pt2`` file. `inputs`: by the names
    that ``opstep.from_onnx(path)`` has for them; by default the examples of an exported program.
    `rtol`: a relative difference that is rounding, by default 8 units in the last place. Raises
    `OpstepError` where one of them cannot be run, or where they have other inputs or outputs.
    """
    file = Exported(path)
    found = file.traced(model, inputs or {})
    return file.compare(found, {**file.examples(found), **(inputs or {})}, settings, rtol)


def _run(model: Translated, given: Mapping[str, np.ndarray]) -> dict[Value, torch.Tensor]:
    """All values of the model's graph, by PyTorch."""
    found = list(placeholders(model.exported))
    known = {Value(p.node): p.value.detach().cpu() for p in found if p.value is not None}
    taken = [p.node for p in found if p.kind == "input"]
    taken = [n for n in taken if isinstance(n.meta.get("val"), torch.Tensor)]
    if len(taken) != len(given):
        raise InputError(f"the file has {len(given)} inputs, and the model {len(taken)}")
    for node, (name, array) in zip(taken, given.items(), strict=True):
        wanted, tensor = node.meta["val"], tensor_of(array)
        if tensor.ndim != wanted.ndim:
            raise InputError(f"input {name} has {tensor.ndim} axes, and in the model {wanted.ndim}")
        known[Value(node)] = tensor.to(wanted.dtype)
    graph = model.exported.graph
    for value in evaluating.values(graph):
        if evaluating.draws(value.node):
            op = str(value.node.target).removeprefix("aten.")
            raise InputError(
                f"the model draws random numbers ({op}), so it has no numbers to compare with",
                hint="compare it as it is used: model.eval()",
            )
    return evaluating.run(graph, known)


class _Comparer:
    def __init__(
        self, file: Exported, model: Translated, given: Mapping[str, np.ndarray],
        ours: Mapping[str, np.ndarray], theirs: Mapping[Value, torch.Tensor], rtol: float | None,
    ):  # fmt: skip
        self.file, self.graph, self.given = file, model.exported.graph, given
        self.ours, self.theirs, self.rtol = ours, theirs, rtol
        self.order = {v: k for k, v in enumerate(evaluating.values(self.graph)) if v in theirs}
        self.arrays: dict[Value, np.ndarray] = {}
        self.producers = {n: node for node in file.nodes for n in node.output if n}
        self.places = {id(node): k for k, node in enumerate(file.nodes)}
        self.weights = {
            p.name: p.value for p in placeholders(model.exported) if p.value is not None
        }
        self.outputs = self._outputs(model.exported)
        self.pairs = self._pairs()

    def compared(self) -> ModelComparison:
        found = ModelComparison((self.file.path.name, "torch"))
        distances: dict[str, Distance] = {}
        for name in (n for node in self.file.nodes for n in node.output if n in self.pairs):
            part = self._part(name)
            one = self._compare(name, part, distances)
            if one is not None:
                found.differing.append(one)
        found.compared = len(self.pairs)
        found.unpaired = sum(
            name in self.ours and name not in self.pairs and node.op_type != "Identity"
            for node in self.file.nodes
            for name in node.output
        )
        for name, value in self.outputs.items():
            error = error_of(self.ours[name], self._theirs(value))
            found.outputs[self.file.named[name]] = OutputErrors(error, None, None)
        return found

    # --- pairs ---

    def _outputs(self, exported: ExportedProgram) -> dict[str, Value]:
        nodes = {n.name: n for n in self.graph.nodes}
        specs = exported.graph_signature.output_specs
        named = [s.arg.name for s in specs if s.kind is OutputKind.USER_OUTPUT]
        values = [value_of(nodes[n]) for n in named if n in nodes]
        values = [v for v in values if v in self.theirs]
        names = [n for n in self.file.outputs if n in self.ours]
        if len(names) != len(values):
            raise InputError(f"the file has {len(names)} outputs, and the model {len(values)}")
        for name, value in zip(names, values, strict=True):
            a, b = self.ours[name], self._theirs(value)
            if a.shape != b.shape:
                raise InputError(
                    f"output {name} is {type_text(a)} in the file, and {type_text(b)} in the model"
                )
        return dict(zip(names, values, strict=True))

    def _pairs(self) -> dict[str, Value]:
        users: dict[Hashable, list[fx.Node]] = {}
        for node in self.graph.nodes:
            for operand in node.all_input_nodes:
                users.setdefault(value_of(operand), []).append(node)
        given = set(self.outputs.values())
        theirs = []
        for value in self.order:
            op, (file, number) = str(value.node.target).split("."), last_line(frames_of(value.node))
            line = Path(file).name, number
            array = self._theirs(value)
            uses = None if value in given else tuple(map(module_of, users.get(value, ())))
            theirs.append(Site(
                value, value.node.name, module_of(value.node), line, op[min(1, len(op) - 1)],
                array.shape, "f" if is_float(array.dtype) else array.dtype.kind, uses,
            ))  # fmt: skip
        modules = {path for s in theirs for path in _around(s.module)}
        ours = sites_of(self.file.nodes, self.ours, modules, self.outputs)
        pairs: Any = pairs_of(ours, theirs)
        return pairs | {n: v for n, v in self.outputs.items() if n in self.producers}

    def _part(self, name: str) -> Part:
        nodes, leaves, stack = {}, dict[str, None](), [name]
        while stack:
            node = self.producers[stack.pop()]
            if id(node) in nodes:
                continue
            nodes[id(node)] = node
            for operand in node.input:
                if operand in self.given or (operand in self.pairs and operand != name):
                    leaves[operand] = None
                elif operand in self.producers:
                    stack.append(operand)
        return Part(sorted(nodes.values(), key=lambda n: self.places[id(n)]), list(leaves))

    # --- one value ---

    def _compare(
        self, name: str, part: Part, distances: dict[str, Distance]
    ) -> OpDifference | None:
        value = self.pairs[name]
        a, b = self.ours[name], self._theirs(value)
        through = max(
            (n for n in part.leaves if n in distances), key=lambda n: distances[n].norm, default=""
        )
        came, scale = distances.get(through, NEAR), max(self._scale(a.dtype), self._scale(b.dtype))
        away = distances[name] = distance_of(a, b)
        if away.explained_by(came, scale):
            return None
        elements = judging.apart(a, b, self.rtol)
        if elements is None:
            return None
        made, own, other = None, None, self._other(a, value)
        if other is None:
            made = self._recomputed(name, part)
            own = self._own(made, value, a.dtype)
            if made is not None and own is not None and not own.right:
                other = self._other(made, value)
        if other is not None:  # what is called so here is a later value: a norm that is folded
            self.pairs[name] = other
            return self._compare(name, part, distances)
        return self._difference(name, part, elements, came, through, own)

    def _scale(self, dtype: np.dtype) -> float:
        return scale_of(dtype, self.rtol)

    def _theirs(self, value: Value) -> np.ndarray:
        if value not in self.arrays:
            self.arrays[value] = array_of(self.theirs[value])
        return self.arrays[value]

    def _recomputed(self, name: str, part: Part) -> np.ndarray | None:
        """What the file makes of what PyTorch had."""
        known = {}
        for node in part.nodes:
            for operand in filter(None, node.input):
                constant = self.file.constant(operand)
                if constant is not None:
                    known[operand] = constant
        for leaf in part.leaves:
            if leaf in self.given:
                known[leaf] = self.given[leaf]
            else:
                with np.errstate(all="ignore"):
                    known[leaf] = self._theirs(self.pairs[leaf]).astype(self.ours[leaf].dtype)
        types = {n: a.dtype for n, a in self.ours.items() if is_float(a.dtype)}
        found = recomputed(self.file.model, part.nodes, name, known, types)
        return found if found is None or found.shape == self.ours[name].shape else None

    def _own(self, made: np.ndarray | None, value: Value, dtype: np.dtype) -> Own | None:
        """How far that is from what PyTorch's ops make of it."""
        if made is None:
            return None
        paired = {v: self.theirs[v] for v in self.pairs.values() if v != value}
        known = {**{v: t for v, t in self.theirs.items() if v.node.op == "placeholder"}, **paired}
        if is_float(dtype):
            known = {v: _narrowed(t, dtype) for v, t in known.items()}
        exact = Exact(self.graph, known)

        def again(rng: np.random.Generator | None = None) -> np.ndarray:
            return exact.results([value], rng)[0].numpy()

        try:
            target = again()
            if not is_float(made.dtype):
                same = np.array_equal(made, target.astype(made.dtype))
                return Own(error_of(made, target), 0.0 if same else float("inf"))
            error = error_of(made, target)
            if error.unlike:  # of a type that does not reach as far
                return Own(error, float("inf"))
            return judging.own_error(made, target, self.rtol, lambda: 1.0, again)
        except (RuntimeError, NotImplementedError):  # of ops without f64
            return None

    def _other(self, made: np.ndarray, value: Value) -> Value | None:
        """The next value of PyTorch's that is what was made."""
        taken = set(self.pairs.values()) - set(self.outputs.values())
        for other, place in self.order.items():
            if place <= self.order[value] or other in taken:
                continue
            array = self._theirs(other)
            if array.shape == made.shape and not judging.apart(made, array, self.rtol):
                return other
        return None

    def _difference(
        self, name: str, part: Part, elements: Any, came: Distance, through: str, own: Own | None
    ) -> OpDifference:
        value = self.pairs[name]
        a, b = self.ours[name], self._theirs(value)
        file, line = last_line(frames_of(value.node))
        exact = Exact(self.graph, self.theirs)
        theirs = torch_judging.own_error(value, self.theirs, exact, self.rtol)
        found = verdict(own, theirs)
        if found == "a":
            found = EXPORT
        elif found == "rounding" and not _grows(part, came, self._scale(a.dtype)):
            ours = self._own_here(name, part)
            found = "a" if ours is not None and not ours.right else found
            own = ours or own
        place = self.file.place(name)
        return OpDifference(
            op=self._operators(part.nodes), value=name, type=type_text(a),
            module=module_of(value.node),
            file=portable(file) if file else place["file"], line=line or place["line"],
            source=linecache.getline(file, line).strip() if line else place["source"],
            statement=place["statement"], site=f"{self.file.model.graph.name}/{name}",
            elements=elements, total=error_of(a, b), came=came.norm, through=through,
            own=(own, theirs), verdict=found, other=f"{value.node.target} {value.node.name}",
            weights=self._weights(part.nodes, value) if found == EXPORT else (),
        )  # fmt: skip

    def _own_here(self, name: str, part: Part) -> Own | None:
        """What our run of the last node adds."""
        node = part.nodes[-1]
        operands = {n: self._known(n) for n in node.input if n}
        if any(o is None for o in operands.values()):
            return None
        results = {n: self.ours[n] for n in node.output if n in self.ours}
        k = list(node.output).index(name)
        return own_error(self.file.model, node, k, operands, results, self.rtol)  # pyright: ignore

    def _known(self, name: str) -> np.ndarray | None:
        found = self.ours.get(name, self.given.get(name))
        return self.file.constant(name) if found is None else found

    def _operators(self, nodes: Sequence[Any]) -> str:
        """``MatMul, Add``: of nodes that compute tensors."""
        shown = [n.op_type for n in nodes if n.op_type != "Identity" and n.output[0] in self.ours]
        if len(shown) > MANY:
            return f"{', '.join(shown[:2])}, …, {shown[-1]} ({len(shown)} nodes)"
        return ", ".join(shown or [nodes[-1].op_type])

    def _weights(self, nodes: Sequence[Any], value: Value) -> tuple[str, ...]:
        """Weights of the module that are others in the file. (Those of other modules may be folded
        into what this one does.)
        """
        module = module_of(value.node)
        found = dict[str, None]()
        for name in (n for node in nodes for n in node.input if n in self.weights):
            ours, theirs = self.file.constant(name), array_of(self.weights[name].detach().cpu())
            if ours is None or ours.shape != theirs.shape or name.rpartition(".")[0] != module:
                continue
            if judging.apart(ours, theirs, self.rtol):
                found[name] = None
        return tuple(found)


def _grows(part: Part, came: Distance, scale: float) -> bool:
    return came.norm > scale and bool(part.leaves)


def _around(module: str) -> list[str]:
    parts = module.split(".")
    return [".".join(parts[: k + 1]) for k in range(len(parts))]


def _narrowed(tensor: torch.Tensor, dtype: np.dtype) -> torch.Tensor:
    """A tensor as the file has it, where that has a shorter type; not what is infinite there."""
    if not tensor.is_floating_point():
        return tensor
    wanted = getattr(torch, {"bfloat16": "bfloat16"}.get(dtype.name, dtype.name))
    narrow = TOLERANCE[dtype_of(dtype).name]
    own = TOLERANCE[dtype_of(array_of(tensor.reshape(-1)[:0]).dtype).name]
    if narrow <= own:
        return tensor
    rounded = tensor.to(wanted)
    return rounded if bool(torch.isfinite(rounded).all()) else tensor
