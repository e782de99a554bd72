"""Who is right: a model as it runs here beside PyTorch's own results, op by op.

found = opstep.frontends.torch.comparing.diff_torch("model.pt2", against="inductor")
found.first.file, found.first.line, found.first.verdict
"""

from __future__ import annotations

import linecache
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind

from opstep.api.files import check_fallback
from opstep.api.origins import portable
from opstep.api.settings import RunSettings
from opstep.differing.elements import Elements
from opstep.differing.errors import Error, error_of
from opstep.differing.judging import apart
from opstep.differing.lockstep import placed
from opstep.differing.models import ModelComparison, OpDifference, OutputErrors, verdict
from opstep.differing.taps import Tapped, Taps
from opstep.frontends.recorded import record_reference
from opstep.frontends.torch import evaluating
from opstep.frontends.torch.assembling import Translated, placeholders
from opstep.frontends.torch.converting import converted, float_type, in_type
from opstep.frontends.torch.drafts import Value
from opstep.frontends.torch.evaluating import (
    Exact,
    Known,
    array_of,
    draws,
    results_of,
    tensor_of,
    value_of,
)
from opstep.frontends.torch.exporting import retranslated
from opstep.frontends.torch.importing import translated
from opstep.frontends.torch.judging import own_error
from opstep.frontends.torch.modules import Call, call_tree
from opstep.frontends.torch.sources import frames_of, last_line
from opstep.runtime.ir.errors import DeviceError, InputError
from opstep.runtime.ir.graph import Return
from opstep.runtime.ir.printer import print_statement
from opstep.trace.recording import Recording

BUDGET = 1 << 30  # bytes of our results that are kept
OURS = "opstep"
TORCH, INDUCTOR = "torch", "inductor"


def diff_torch(
    model: torch.nn.Module | ExportedProgram | str | Path, args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None, *, against: str = TORCH, dtype: str | None = None,
    inputs: Mapping[str, Any] | None = None, settings: RunSettings = RunSettings(),
    rtol: float | None = None, budget: int = BUDGET, recording: Recording | None = None,
    fallback: str | None = None,
) -> ModelComparison:  # fmt: skip
    """Runs a model here and by PyTorch, and finds the first op whose result differs by more than
    what rounding and the op's operands explain.

    `model`, `args`, `kwargs` and `fallback`: as for `from_torch`. `against`: "torch" (op by op),
    "inductor" (compiled), either with a device ("torch:cuda"). `dtype`: the type of our floats
    ("bf16"), by default the model's. `inputs`: by the program's names; by default the example
    inputs. `rtol`: a relative difference that is rounding, by default 8 units in the last place.
    `recording`: takes down both sides, as runs of the program. Raises `OpstepError` where one of
    them cannot be run.
    """
    check_reference(against)
    check_fallback(fallback)
    found = translated(model, args, kwargs, fallback=fallback is not None)
    return compare(found, against, dtype, inputs, settings, rtol, budget, recording)


def compare(
    theirs: Translated, against: str = TORCH, dtype: str | None = None,
    inputs: Mapping[str, Any] | None = None, settings: RunSettings = RunSettings(),
    rtol: float | None = None, budget: int = BUDGET, recording: Recording | None = None,
) -> ModelComparison:  # fmt: skip
    """`diff_torch` of a model that is translated already."""
    how, device = check_reference(against)
    ours = theirs
    if dtype is not None:
        ours = retranslated(
            converted(theirs.exported, float_type(dtype)),
            f"<{dtype}>",
            bool(theirs.program.fallback),
        )
    given = _given(theirs, inputs)
    known = _Ours(theirs, ours, settings, budget).run(given, recording)
    given |= _drawn(theirs.exported.graph, known.values, how)
    names = (f"{OURS}, {dtype}" if dtype else OURS, against)
    comparer = _Comparer(theirs.exported, known, given, names, rtol)
    if how == INDUCTOR:
        found = comparer.compiled(device)
    else:
        found = comparer.compared(evaluating.run(theirs.exported.graph, given, device))
    if recording is not None:
        comparer.record(recording, theirs, settings, against)
        found.runs = tuple(run.key for run in recording.runs[-2:])
    return found


def _drawn(graph: fx.Graph, ours: Known, how: str) -> dict[Value, torch.Tensor]:
    """Random numbers: the other side takes ours. Raises `InputError` where it cannot."""
    random = [v for v in evaluating.values(graph) if draws(v.node)]
    if random and how == INDUCTOR:
        op = random[0].node.target
        raise InputError(f"{op} draws other numbers there", hint="compare with torch")
    return {v: ours[v].to(results_of(v.node.meta["val"])[v.index].dtype)
            for v in random if v in ours}  # fmt: skip


def check_reference(against: str) -> tuple[str, str]:
    """What runs it, and where. Raises `InputError`, `DeviceError`."""
    how, _, device = against.partition(":")
    kind, _, index = device.partition(":")
    known = how in (TORCH, INDUCTOR) and kind in ("", "cpu", "cuda")
    if not known or (index and not (kind == "cuda" and index.isdecimal())):
        raise InputError(
            f"{against!r} is nothing to compare with", hint="there are: torch, inductor, torch:cuda"
        )
    if kind == "cuda" and int(index or 0) >= torch.cuda.device_count():
        if not torch.cuda.device_count():
            hint = "" if torch.version.cuda else f"torch {torch.__version__} is a build for the CPU"
            raise DeviceError(f"{against}: PyTorch finds no GPU here", hint=hint)
        raise DeviceError(f"{against}: PyTorch finds no such device")
    return how, device or "cpu"


def _given(theirs: Translated, inputs: Mapping[str, Any] | None) -> dict[Value, torch.Tensor]:
    """What the placeholders hold: weights, and inputs by the program's names."""
    examples = theirs.program.example
    known = {Value(p.node): p.value for p in placeholders(theirs.exported) if p.kind != "input"}
    for name, node in _input_nodes(theirs).items():
        found = (inputs or {}).get(name, examples.get(name))
        if found is None:
            raise InputError(f"input {name} is missing", hint="the model has no example inputs")
        tensor = found if isinstance(found, torch.Tensor) else tensor_of(found)
        known[Value(node)] = tensor.to(node.meta["val"].dtype)
    return {v: t.detach().cpu() for v, t in known.items() if t is not None}


def _input_nodes(found: Translated) -> dict[str, fx.Node]:
    """By the names of the program's inputs."""
    nodes = [p.node for p in placeholders(found.exported) if p.kind == "input"]
    nodes = [n for n in nodes if isinstance(n.meta.get("val"), torch.Tensor)]
    names = [b.name.text for b in found.program.graph("main").inputs]
    return dict(zip(names, nodes, strict=True))


class _Ours:
    """A run of the program: all values of ATen's graph that it has."""

    def __init__(self, theirs: Translated, ours: Translated, settings: RunSettings, budget: int):
        self._ours = ours
        self._program = ours.program
        self._settings = settings
        self._budget = budget
        self._nodes = {n.name: n for n in theirs.exported.graph.nodes}
        self._inputs = _input_nodes(theirs)
        self.returned = [
            name.text
            for statement in ours.program.graph("main").body
            if isinstance(statement, Return)
            for name in statement.values
        ]
        self.tapped: dict[Value, Tapped] = {}
        self.outputs: dict[str, torch.Tensor] = {}
        self.values: dict[Value, torch.Tensor] = {}
        self.complete = True

    def run(self, given: Mapping[Value, torch.Tensor], recording: Recording | None) -> _Ours:
        types = {p.node.name: p.node.meta["val"] for p in placeholders(self._ours.exported)}
        for value, tensor in given.items():
            self.values[value] = in_type(tensor, types[value.node.name].dtype)
        device = self._program.on(self._settings.device, self._settings.setup)
        taps = Taps(device, self._budget)
        inputs = {name: self.values[Value(node)] for name, node in self._inputs.items()}
        result = self._program.run(
            "main", inputs, listeners=[taps], recording=recording, **vars(self._settings)
        )
        self.outputs = {name: tensor_of(result[name]) for name in result}
        for site, value in self._ours.nodes.items():
            tapped = taps.found.get((site,))
            if tapped is None:
                continue
            if value.node.graph is not self._ours.exported.graph:  # of a branch or a loop
                continue
            counterpart = Value(self._nodes[value.node.name], value.index)
            self.tapped[counterpart] = tapped
            if tapped.memory is None:
                self.complete = False
            else:
                self.values[counterpart] = tensor_of(taps.array(tapped))
        return self


class _Comparer:
    """Compares what we had with what the other side had."""

    def __init__(
        self, exported: ExportedProgram, ours: _Ours, given: Known, names: tuple[str, str],
        rtol: float | None,
    ):  # fmt: skip
        self._exported = exported
        self._graph = exported.graph
        self._ours = ours
        self._given = given
        self._rtol = rtol
        self._names = names
        self._order = list(evaluating.values(self._graph))
        self._theirs: Known = {}  # what was compared last
        for name, value in self._outputs().items():
            ours.values.setdefault(value, ours.outputs[name])

    def compared(self, theirs: Known) -> ModelComparison:
        """All values that both sides have."""
        self._theirs = theirs
        found = ModelComparison(self._names, complete=self._ours.complete)
        exact = Exact(self._graph, self._ours.values), Exact(self._graph, theirs)
        totals = self._input_errors(theirs)
        for value in self._order:
            if value not in self._ours.values or value not in theirs:
                continue
            found.compared += 1
            a, b = self._ours.values[value], theirs[value]
            arrays = array_of(a), array_of(b)
            elements = apart(*arrays, self._rtol)
            if elements:
                totals[value] = error_of(*arrays)
                found.differing.append(self._difference(value, elements, theirs, exact, totals))
        found.outputs = self._output_errors(theirs)
        return found

    def compiled(self, device: str) -> ModelComparison:
        """The outputs of what Inductor makes; where one is wrong, what modules give as well, and
        then all values of the module with the first that is: for as long as one is.
        """

        def run(wanted: Sequence[Value]) -> ModelComparison:
            return self.compared(evaluating.run_compiled(self._graph, self._given, wanted, device))

        outputs = list(self._outputs().values())
        found = run(outputs)
        found.fused = True
        between = {*outputs, *_between_modules(self._graph)}
        for _ in range(2):
            closer = run([v for v in self._order if v in between]) if found.faults else found
            if not closer.faults:  # there are none, or what lies between must be fused for one
                break
            found = closer
            wrong = next(v for v in self._order if v.node.name == found.faults[0].value)
            module, _ = evaluating.cone(self._graph, [wrong], between - {wrong})
            between |= {v for v in self._order if v.node in module}
        return found

    def record(
        self, recording: Recording, model: Translated, settings: RunSettings, name: str
    ) -> None:
        """The other side's run, as that of the program."""
        inputs = {n: array_of(self._given[Value(node)]) for n, node in _input_nodes(model).items()}
        outputs = {
            n: array_of(self._theirs[v]) for n, v in self._outputs().items() if v in self._theirs
        }

        def known(site: str) -> np.ndarray | None:
            found = self._theirs.get(model.nodes.get(site))  # pyright: ignore[reportArgumentType]
            return None if found is None else array_of(found)

        title = f"PyTorch {torch.__version__} ({name})"
        record_reference(recording, model.program, known, inputs, outputs, settings, name, title)

    # --- one value ---

    def _input_errors(self, theirs: Known) -> dict[Value, Error]:
        """What rounding to another type makes of weights and inputs."""
        pairs = ((v, t, theirs[v]) for v, t in self._ours.values.items() if v in self._given)
        return {v: error_of(array_of(a), array_of(b)) for v, a, b in pairs if a.dtype != b.dtype}

    def _difference(
        self, value: Value, elements: Elements, theirs: Known, exact: tuple[Exact, Exact],
        totals: Mapping[Value, Error],
    ) -> OpDifference:  # fmt: skip
        node = value.node
        own = (
            own_error(value, self._ours.values, exact[0], self._rtol),
            own_error(value, theirs, exact[1], self._rtol),
        )
        _, operands = evaluating.cone(self._graph, [value], theirs)
        leaves = [v for v in operands if v in totals]
        worst = max(leaves, key=lambda v: totals[v].relative, default=None)
        file, line = last_line(frames_of(node))
        tapped = self._ours.tapped.get(value)
        site = placed(tapped).site if tapped else ""
        statement = print_statement(replace(tapped.step.statement, at=None)) if tapped else ""
        return OpDifference(
            op=str(node.target), value=node.name, type=str(tapped.type) if tapped else "",
            file=portable(file), line=line,
            source=linecache.getline(file, line).strip() if line else "", module=module_of(node),
            statement=statement.strip(), site=site, elements=elements, total=totals[value],
            came=totals[worst].relative if worst else 0.0,
            through=worst.node.meta.get("named", worst.node.name) if worst else "", own=own,
            verdict=verdict(*own),
        )  # fmt: skip

    # --- outputs ---

    def _outputs(self) -> dict[str, Value]:
        """By the program's names."""
        nodes = {n.name: n for n in self._graph.nodes}
        kinds = OutputKind.USER_OUTPUT, OutputKind.USER_INPUT_MUTATION  # in this order
        specs = self._exported.graph_signature.output_specs
        found = [nodes.get(s.arg.name) for kind in kinds for s in specs if s.kind is kind]
        tensors = [n for n in found if n and isinstance(n.meta.get("val"), torch.Tensor)]
        values = [value_of(n) for n in tensors]
        return dict(zip(self._ours.returned, values, strict=True))

    def _output_errors(self, theirs: Known) -> dict[str, OutputErrors]:
        outputs = {n: v for n, v in self._outputs().items() if v.node.op == "call_function"}
        try:
            exact = Exact(self._graph, self._given).results(list(outputs.values()))
        except (RuntimeError, NotImplementedError):  # an op has no f64
            exact = [None] * len(outputs)
        found = {}
        for (name, value), e in zip(outputs.items(), exact, strict=True):
            a, b = array_of(self._ours.outputs[name]), array_of(theirs[value])
            own = (None, None) if e is None else [error_of(x, e.numpy()) for x in (a, b)]
            found[name] = OutputErrors(error_of(a, b), *own)
        return found


def module_of(node: fx.Node) -> str:
    """The path of the module that calls an op: ``encoder.layer.0``."""
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return ""
    path, _ = list(stack.values())[-1]
    return path.removeprefix("L['self']").removeprefix(".")


def _between_modules(graph: fx.Graph) -> set[Value]:
    """What modules give to others."""
    nodes = [n for n in graph.nodes if n.op == "call_function"]
    found: set[Value] = set()
    pending: list[Call] = [call_tree(nodes)]
    while pending:
        call = pending.pop()
        own = set(call.nodes())
        pending += [c for c in call.items if isinstance(c, Call)]
        found |= {value_of(n) for n in own if any(u not in own for u in n.users)}
    tensors = set(evaluating.values(graph))
    return found & tensors
