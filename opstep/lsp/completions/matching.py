"""Which values, graphs and numbers an op could take where the cursor stands.

Nothing here knows a rule of its own: the op's shape rule is tried with each type that there is.
What is not written yet is stood in for, so that an operand is known to fit when something could
follow it that makes the statement right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from opstep.api.catalogue import Entry
from opstep.lsp.completions.cursor import Argument, Call, Token, is_number
from opstep.runtime.ir.calls import resolve_call, unify
from opstep.runtime.ir.control import Control
from opstep.runtime.ir.diagnostics import OpstepError
from opstep.runtime.ir.graph import NOWHERE, Binding, Graph, Name, Source
from opstep.runtime.ir.lexer import Lexer, SyntaxFault, bare_name
from opstep.runtime.ir.op import Mismatch, Op, Ref, Resolved, complete, expand, resolve
from opstep.runtime.ir.types import TensorType, TypeVariable, boolean
from opstep.runtime.ir.values import parse_number, parse_value

if TYPE_CHECKING:
    from opstep.lsp.completions.scope import Scope

FITS, MAY, NOT = 0, 1, 2  # sorted in this order

_MOST_TRIES = 300  # of a shape rule, some 10 us each; what is left is sorted by element type alone
_MOST_FILLERS = 24
_FAULTS = (Mismatch, ZeroDivisionError, KeyError)
_CONDITION = TensorType(boolean, ())

Operand = TensorType | int | float
Graphs = Callable[[str], Graph]


@dataclass
class Site:
    """A call under way: its callee, the operands and attributes that can be read of it.

    An operand is None where its type is unknown. `operand` is the operand that the cursor is in.
    """

    entry: Entry
    operands: list[Operand | None]
    operand: int
    attrs: dict[str, Any]
    graphs: Graphs
    tries: int = _MOST_TRIES

    @classmethod
    def of(
        cls,
        entry: Entry,
        call: Call,
        scope: Scope,
        complete: bool = False,
    ) -> Site:
        """What is written of a call in a scope.

        With `complete` what stands at the cursor counts, too; else it is what is looked for.
        """
        active = call.arguments[call.active]
        operands = call.operands()
        operand = operands.index(active) if active in operands else len(operands)
        read = [_operand(a, scope.types) for a in operands]
        if complete and operand < len(read) and not active.tokens:
            del read[operand]
        elif not complete and operand < len(read):
            read[operand] = None
        variables = scope.variables
        attrs = {n: v for n, a in call.attributes().items()
                 if (complete or a is not active)
                 and (v := _value(a, variables)) is not _UNREAD}  # fmt: skip
        return cls(entry, read, operand, attrs, scope.graph)

    def resolved(self, operands: Sequence[Operand | None]) -> Resolved | None:
        """What the call comes to with these operands; None where it does not come to anything."""
        self.tries -= 1
        try:
            return self._apply(operands)
        except _FAULTS:
            return None

    def _apply(self, operands: Sequence[Operand | None]) -> Resolved:
        types: list[Any] = list(operands)
        if isinstance(self.entry, Graph):
            return resolve_call(self.entry, types)[0]
        attrs = complete(self.entry, self.attrs)
        if issubclass(self.entry, Control):
            return self.entry.resolve_call(types, attrs, self.graphs)
        return resolve(self.entry, types, attrs)


def rank_operands(site: Site, types: Iterable[TensorType]) -> dict[Operand, int]:
    """Each of the types: whether it FITS at the cursor's place, MAY, or does NOT."""
    distinct = list(dict.fromkeys(types))
    if isinstance(site.entry, Graph):
        return {t: _fits_graph(site, site.entry, t) for t in distinct}
    found: dict[Operand, int] = {}
    for t in distinct:
        admitted = _admits(site, t)
        if admitted == MAY:
            admitted = _try(site, t, distinct[:_MOST_FILLERS])
        found[t] = admitted
    return found


def accepts_number(site: Site, value: float) -> bool:
    """Whether a number could stand at the cursor's place."""
    if isinstance(site.entry, Graph):
        return (
            site.operand < len(site.entry.inputs) and _fits_graph(site, site.entry, value) == FITS
        )
    if issubclass(site.entry, Control):
        return False
    return _try(site, value, []) == FITS


def rank_graphs(site: Site, attribute: str, names: Iterable[str], many: bool) -> dict[str, int]:
    """Each graph: whether it could be the value of an attribute of control flow."""
    if None in site.operands:
        return dict.fromkeys(names, MAY)
    return {name: _fits_attribute(site, attribute, name, many) for name in names}


# --- operands -------------------------------------------------------------------------------------


def _admits(site: Site, t: TensorType) -> int:
    """MAY where the element type alone allows it, else NOT."""
    op = site.entry
    assert not isinstance(op, Graph)
    if issubclass(op, Control) and site.operand == 0 and op.operands[0].kind != "T":
        try:  # the operand that selects a graph: the first faults are about it
            op.resolve_call([t], {a.name: () for a in op.attrs}, site.graphs)
        except Mismatch as m:
            return NOT if m.at == 0 else FITS
        except (KeyError, AttributeError, TypeError):
            return FITS
    try:
        specs = expand(op, max(site.operand + 1, sum(not o.optional for o in op.operands)))
        resolve(_alone(op, specs[site.operand]), [t], {})
    except _FAULTS:
        return NOT
    return MAY


def _alone(op: type[Op], spec) -> Any:
    """A stand-in for an op that takes one of its operands, whatever the shape."""

    class One:
        name = op.name
        signature = op.signature
        operands = (spec._replace(optional=False, variadic=False),)

        @staticmethod
        def infer(t):
            return t

    return One


def _try(site: Site, candidate: Operand, fillers: list[TensorType]) -> int:
    """Tries a candidate, with stand-ins for the operands that are not written."""
    op = site.entry
    assert not isinstance(op, Graph)
    operands = list(site.operands)
    operands += [None] * (site.operand + 1 - len(operands))
    operands[site.operand] = candidate
    least = sum(not o.optional for o in op.operands)
    missing = max(0, least - len(operands))
    if site.tries <= 0 or any(a.required and a.name not in site.attrs for a in op.attrs):
        return MAY
    if None in operands:
        return MAY
    if not missing:
        return FITS if site.resolved(operands) is not None else NOT
    for filler in (candidate, 1, 1.0, *fillers):
        if site.resolved([*operands, *[filler] * missing]) is not None:
            return FITS
    return MAY


def _fits_graph(site: Site, graph: Graph, candidate: Operand) -> int:
    """Whether the inputs of a graph can be bound to what is written, with the candidate."""
    if site.operand >= len(graph.inputs):
        return NOT
    inputs = [(b, t) for b, t in zip(graph.inputs, site.operands, strict=False) if t is not None]
    at = graph.inputs[site.operand]
    order = sorted([*inputs, (at, candidate)], key=lambda pair: graph.inputs.index(pair[0]))
    part = Graph(graph.name, tuple(b for b, _ in order), (), ())
    try:
        unify(part, [t for _, t in order])
    except _FAULTS:
        return NOT
    return FITS


# --- graphs as attributes -------------------------------------------------------------------------


def _fits_attribute(site: Site, attribute: str, name: str, many: bool) -> int:
    """Whether some way to write what is missing makes a graph right for an attribute."""
    op = site.entry
    if isinstance(op, Graph) or not issubclass(op, Control):
        return MAY
    operands: list[Any] = list(site.operands)
    carried = [t for t in operands if isinstance(t, TensorType)]
    same, flag = (
        _stand_in("?same", carried, tuple(carried)),
        _stand_in("?flag", carried, (_CONDITION,)),
    )
    extra = {"?same": same, "?flag": flag}

    def find(name: str) -> Graph:
        return extra[name] if name in extra else site.graphs(name)

    attributes = dict(site.attrs)
    before = attributes.get(attribute, ())
    listed = tuple(v for v in before if isinstance(v, Ref)) if isinstance(before, tuple) else ()
    attributes[attribute] = (*listed, Ref(name)) if many else Ref(name)
    missing = [a.name for a in op.attrs if a.required and a.name not in attributes]
    for names in product((name, *extra), repeat=len(missing)):
        site.tries -= 1
        if site.tries < 0:
            return MAY
        stand_ins = {a: Ref(n) for a, n in zip(missing, names, strict=True)}
        try:
            op.resolve_call(operands, complete(op, {**attributes, **stand_ins}), find)
            return FITS
        except _FAULTS:
            continue
    return NOT


def _stand_in(name: str, inputs: list[TensorType], results: tuple[TensorType, ...]) -> Graph:
    bindings = tuple(Binding(Name(f"x{k}"), t, NOWHERE) for k, t in enumerate(inputs))
    return Graph(Name(name), bindings, results, ())


# --- what is written ------------------------------------------------------------------------------

_UNREAD = object()


def _operand(argument: Argument, types: Mapping[str, TensorType]) -> Operand | None:
    """The type of an operand, a number, or None."""
    tokens = argument.tokens
    if not tokens:
        return None
    if len(tokens) == 1 and tokens[0].kind in ("name", "quoted") and not is_number(tokens):
        return types.get(bare_name(tokens[0].value))
    return read_tokens(tokens, parse_number) if is_number(tokens) else None


def _value(argument: Argument, variables: Mapping[str, TypeVariable]) -> Any:
    """The value of an attribute, or _UNREAD where there is none yet."""
    found = read_tokens(argument.value, parse_value, variables) if argument.value else None
    return _UNREAD if found is None and not _is_none(argument) else found


def _is_none(argument: Argument) -> bool:
    return [t.value for t in argument.value] == ["none"]


def read_tokens(
    tokens: Sequence[Token], parse: Callable[[Lexer], Any],
    variables: Mapping[str, TypeVariable] = MappingProxyType({}),
) -> Any:  # fmt: skip
    """What a part of the parser makes of some tokens; None where they are not whole."""
    lex = Lexer(Source(" ".join(t.value for t in tokens)))
    lex.variables = variables
    try:
        return parse(lex)
    except (SyntaxFault, OpstepError):
        return None
