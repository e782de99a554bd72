"""Programs with a graph more: the gradient of one that they have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from opstep.runtime.ir.diagnostics import OpstepError, names_listed
from opstep.runtime.ir.errors import InputError, UnknownName
from opstep.runtime.ir.graph import NOWHERE, Graph, Module, Source
from opstep.runtime.ir.types import DependsOnType, TensorType
from opstep.runtime.ir.wording import Argument, Wording

if TYPE_CHECKING:
    from opstep.api.program import Program
    from opstep.runtime.transforms.backward import GradientError


def with_gradient(
    program: Program,
    graph: Graph,
    wrt: Sequence[str],
    name: str,
    freeze: Sequence[str] = (),
    strict: bool = False,
) -> Module:
    """The program's module with the gradient of `graph`, called `name`, and the graphs that it
    calls. Raises as `Program.with_grad` does; if `strict`, also where the loss does not depend on
    something in `wrt`.
    """
    from opstep.runtime.transforms.grad import GradientError, grad

    if name in program.graphs:
        hint = Wording("give another ", Argument("name"))
        raise InputError(f"there is a graph {name} already", hint=hint)
    chosen, matched = _chosen(program, graph, wrt, freeze)
    module, unused = program.module, []
    try:
        made = grad(
            program.verified, graph.name.text, chosen, name=name, optional=matched, unused=unused
        )
    except GradientError as error:
        raise _located(error, module.source) from None
    except DependsOnType as error:
        raise _not_generic(graph, error, program) from None
    _check_unused(graph, [n for n in unused if n not in matched] if strict else [])
    if chosen and len(unused) == len(chosen) and set(chosen) <= matched:
        _check_unused(graph, chosen)
    return Module((*module.items, *made), module.closing, module.source)


def _check_unused(graph: Graph, names: Sequence[str]) -> None:
    if names:
        listed = names_listed(names)
        hint = f"the first result of {graph.name.text} is what is differentiated"
        raise InputError(f"{graph.name.text} does not depend on {listed}", hint=hint)


def _located(error: GradientError, source: Source | None) -> OpstepError:
    span = error.statement.span if error.statement else NOWHERE
    return OpstepError(  # what a gradient was made of has no place in the text
        str(error),
        span=None if span == NOWHERE else span,
        source=error.source or source,
        hint=error.hint,
        notes=error.notes,
    )


def _chosen(
    program: Program, graph: Graph, wrt: Sequence[str], freeze: Sequence[str]
) -> tuple[list[str], set[str]]:
    """What derivatives are by, each once, and what of it a pattern matched."""
    tensors = program.verified.tensors
    types = {n: d.type for n, d in tensors.items()}
    types |= {b.name.text: b.type for b in graph.inputs if b.type is not None}
    params = [n for n, d in tensors.items() if d.kind == "param" and d.type.dtype.is_float]
    chosen: dict[str, bool] = {}
    for word in _words("wrt", wrt):
        if word in types or not _is_pattern(word):
            _check_float(word, types, graph)
            chosen[word] = False
        else:
            for name in _matching(word, params):
                chosen.setdefault(name, True)
    for word in _words("freeze", freeze):
        names = [word] if word in types else None
        if names is None and not _is_pattern(word):
            _check_float(word, types, graph)
        for name in names or _matching(word, params):
            chosen.pop(name, None)
    if wrt and not chosen:
        raise InputError("all that derivatives are by is frozen")
    return list(chosen), {name for name, matched in chosen.items() if matched}


def _not_generic(graph: Graph, error: DependsOnType, program: Program) -> OpstepError:
    message = f"the gradient of {graph.name.text} is not one for all types: {error}"
    span, source = graph.name.span, program.module.source
    return OpstepError(message, span=span, source=source, hint="declare <T: float>")


def _words(argument: str, words: Sequence[str]) -> Sequence[str]:
    if isinstance(words, str):
        raise InputError(f"{argument} is the string {words!r}", hint=f"it is a list: [{words!r}]")
    return words


def _is_pattern(word: str) -> bool:
    return any(c in word for c in "*?[")


def _matching(pattern: str, names: Sequence[str]) -> list[str]:
    found = [n for n in names if fnmatchcase(n, pattern)]
    if not found:
        listing = f"there are: {names_listed(names)}" if names else "there are no params"
        raise InputError(f"no param of floats is called {pattern}", hint=listing)
    return found


def _check_float(name: str, types: Mapping[str, TensorType], graph: Graph) -> None:
    if name not in types:
        message = f"{name} is neither an input of {graph.name.text} nor a param or state"
        raise UnknownName(message, name, types)
    if not types[name].dtype.may_be_float:
        raise InputError(f"{name} is {types[name]}: only floats have derivatives")
