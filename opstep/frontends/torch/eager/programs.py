"""The program of a recorded step: its calls, replayed on what they read, without changes in place.

PyTorch's functionalisation gives memory that an op changes, also through a view, a new version.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import fx
from torch.func import functionalize
from torch.fx import traceback
from torch.fx.experimental.proxy_tensor import make_fx

from opstep.api.inputs import as_array
from opstep.api.program import Program
from opstep.frontends.assignments import assignment
from opstep.frontends.missing import Missing
from opstep.frontends.scripts.script import Script
from opstep.frontends.statements import unique
from opstep.frontends.torch.autograd import decompositions
from opstep.frontends.torch.body import Var
from opstep.frontends.torch.dims import dtype_of
from opstep.frontends.torch.drafts import Draft, Made
from opstep.frontends.torch.eager.steps import Call, Leaf, Recorder, Ref
from opstep.frontends.torch.errors import ImportFailed, cause
from opstep.frontends.torch.graphs import AtenGraph
from opstep.frontends.torch.labels import Labels
from opstep.frontends.torch.naming import identifier
from opstep.frontends.torch.rules import all_rules
from opstep.frontends.torch.translator import Translator
from opstep.frontends.torch.writing import Writer
from opstep.kernels.stdlib import library
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.graph import Declaration, Name, Update
from opstep.runtime.ir.types import TensorType
from opstep.runtime.ir.wording import Words, in_python

aten = torch.ops.aten
GRAPH = "step"
# Its schema does not say that it writes statistics.
_INSTEAD = {aten.native_batch_norm.default: aten._native_batch_norm_legit.default}
_LIFTS = {aten.lift_fresh.default, aten.lift.default}
_COMPOSITE = torch._C.DispatchKey.CompositeExplicitAutograd


def program_of(step: Recorder) -> Program:
    """Raises `ImportFailed` where ops have no counterpart."""
    all_rules()
    used: set[str] = set()
    leaves = [leaf._replace(name=_unique(leaf, used)) for leaf in step.leaves]
    updated = [leaf for leaf in leaves if leaf.is_written and leaf.kind != "input"]
    wanted = [*step.outputs.values(), *(leaf.ref for leaf in updated)]
    replay = _Replay(step.calls, leaves, wanted)
    with warnings.catch_warnings(), torch.no_grad(), traceback.preserve_node_meta():
        warnings.simplefilter("ignore")
        traced = make_fx(
            functionalize(replay, remove="mutations"), _definitions(), tracing_mode="fake"
        )
        module = traced(*(leaf.value for leaf in leaves))
    graph = _StepGraph(module, leaves, list(step.outputs), updated)
    program = graph.program()
    assert program is not None  # all sizes are known
    for leaf in graph.named:
        program.params[leaf.name] = leaf.value
    program.example = {
        name: as_array(f"input {name}", leaf.value, dtype_of(leaf.value.dtype))
        for name, leaf in graph.given.items()
    }
    return program


def _unique(leaf: Leaf, used: set[str]) -> str:
    if leaf.kind == "input":
        return unique(identifier(leaf.name, "input"), used)
    state, _, name = leaf.name.rpartition(" of ")
    return unique(f"{name}.{state}" if state else name, used)


class _Replay:
    """The calls of a step as a function of its leaves."""

    def __init__(self, calls: Sequence[Call], leaves: Sequence[Leaf], wanted: Sequence[Ref]):
        self._calls, self._leaves, self._wanted = calls, leaves, wanted

    def __call__(self, *given: torch.Tensor) -> list[torch.Tensor]:
        # copies: what is written to a placeholder would be written to the caller's tensor, too
        self._values = {
            leaf.ref: t.clone() if leaf.is_written else t
            for leaf, t in zip(self._leaves, given, strict=True)
        }
        for call in self._calls:
            frames = call.frames[::-1]
            trace = "".join(f'  File "{f.file}", line {f.line}, in {f.function}\n' for f in frames)
            traceback.set_stack_trace([trace])
            traceback.current_meta["autograd_backward"] = call.is_backward
            try:
                self._run(call)
            except (RuntimeError, TypeError, NotImplementedError, KeyError) as error:
                at = call.frames[0][:2] if call.frames else ("", 0)
                raise ImportFailed([Missing(str(call.op), cause(error), *at)]) from error
        return [self._values[ref] for ref in self._wanted]

    def _run(self, call: Call) -> None:
        values, op = self._values, call.op
        args = [_given(a, values) for a in call.args]
        kwargs = {k: _given(a, values) for k, a in call.kwargs.items()}
        if op is aten.native_dropout.default and len(args) > 2 and args[2] is not False:
            mask = values[call.drawn[1]]
            results = [args[0] * mask * (0.0 if args[1] == 1 else 1 / (1 - args[1])), mask]
        elif call.drawn:
            results = [values[r] for r in call.drawn]
            if call.results[0] in values and op._schema.is_mutable:
                results = [values[call.results[0]].copy_(results[0])]
        elif op in _LIFTS:
            results = args[:1]
        else:
            results = _results(self._called(op, args, kwargs))
        values.update(zip(call.results, results, strict=False))

    def _called(self, op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if op in _INSTEAD and args[3] is None:
            return aten._native_batch_norm_legit.no_stats(*args[:3], *args[5:])
        return (_INSTEAD.get(op) or op)(*args, **kwargs)


def _definitions() -> dict[Any, Any]:
    """With those of ops on lists of tensors: PyTorch's own kernels, which call an op for each."""
    lists = (getattr(aten, n) for n in dir(aten) if n.startswith("_foreach_"))
    found = (getattr(packet, o) for packet in lists for o in packet.overloads())
    return {op: partial(op._op_dk, _COMPOSITE) for op in found} | decompositions()


def _results(found: Any) -> list[torch.Tensor]:
    return (
        [found]
        if isinstance(found, torch.Tensor)
        else [t for t in found or () if isinstance(t, torch.Tensor)]
    )


def _given(argument: Any, values: dict[Ref, torch.Tensor]) -> Any:
    if isinstance(argument, Ref):
        return values[argument]
    if isinstance(argument, list):
        return [_given(a, values) for a in argument]
    return argument


class _StepGraph(AtenGraph):
    """`named`: leaves that are tensors of the program; `given`: its inputs, by their names."""

    def __init__(
        self, module: fx.GraphModule, leaves: Sequence[Leaf], results: Sequence[str],
        updated: Sequence[Leaf],
    ):  # fmt: skip
        self._leaves_of = dict(
            zip((n.name for n in module.graph.find_nodes(op="placeholder")), leaves, strict=True)
        )
        self._names_of, self._updated = results, updated
        super().__init__(module, GRAPH, Labels([]))

    def _written(self, translator: Translator, main: Draft) -> list[Any]:
        pairs = [
            (value, self._leaves_of[node.name])
            for value, node in zip(main.inputs, self.sources, strict=True)
        ]
        params = [(v, leaf) for v, leaf in pairs if leaf.kind != "input"]
        inputs = [(v, leaf) for v, leaf in pairs if leaf.kind == "input"]
        named = {v.name: leaf.name for v, leaf in params}
        found = [
            main.results[o.index] if o.kind == "result" else main.inputs[self.inputs.index(o.index)]
            for o in self.outputs
        ]
        count = len(self._names_of)
        for leaf, value in zip(self._updated, found[count:], strict=True):
            update = Update(Name(leaf.name), Name(value.name))
            main.body.statements.append(update)  # pyright: ignore[reportArgumentType]
        main.results = found[:count]
        main.made[:] = _of_forward(main, dict(zip(self._names_of, main.results, strict=True)))
        used = {name for module in library() for name in module.graphs}
        writer = Writer(translator.drafts, set(named.values()), used)
        wanted = {v.name: leaf.name for v, leaf in inputs}
        first, *others = writer.write(main, named, wanted, self._names_of)
        self.named = [leaf for _, leaf in params]
        self.given = dict(
            zip((b.name.text for b in first.inputs), (i for _, i in inputs), strict=True)
        )
        declared = [
            Declaration(leaf.kind, Name(leaf.name), concrete(leaf.value), None)
            for leaf in self.named
        ]
        return [*declared, replace(first, name=Name(GRAPH)), *others]

    def _is_saved(self, description: Any) -> bool:
        """Results are wanted as they are, not as views of others."""
        return True


def _of_forward(main: Draft, results: Mapping[str, Var]) -> list[Made]:
    """Values that are called after the variables of their lines: no part of a derivative, no
    second name of a value (`detach`), and nothing where a result is called so.
    """
    known: set[str] = set()
    found = []
    for made in main.made:
        names = {v.name for v in made.results} - known
        nodes = [main.nodes[n].node for n in names if n in main.nodes]
        where = assignment(*made.frames[-1][:2]) if made.frames else None
        taken = [results[t].name for t in where.targets if t in results] if where else []
        is_free = not taken or not names.isdisjoint(taken)
        if names and is_free and not any(n.meta.get("autograd_backward") for n in nodes):
            found.append(made)
        known |= names
    return found


def concrete(t: torch.Tensor) -> TensorType:
    return TensorType(dtype_of(t.dtype), tuple(t.shape))


def record_step(script: Script, number: int, words: Words = in_python) -> Program:
    """Runs a script until step `number` of its optimizers has ended; gives the step's program.
    Raises `InputError` where there is no such step.
    """
    step = Recorder(number)
    code = step.run(script, words)
    if not step.is_complete:
        ended = f"it ended with exit code {code}" if code else "it ended"
        what = f"{ended} after {step.steps} steps of optimizers"
        raise InputError(f"{script.name} has no step {number}: {what}", hint="steps count from 0")
    return program_of(step)
