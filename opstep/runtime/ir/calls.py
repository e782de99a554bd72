"""How operands meet the declared inputs of a graph: at a call, and at the start of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from opstep.runtime.ir.diagnostics import did_you_mean
from opstep.runtime.ir.dims import Expr, evaluate
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.graph import Apply, Graph, Source, Span
from opstep.runtime.ir.op import Mismatch, Resolved
from opstep.runtime.ir.types import DType, GenericDType, TensorType, TypeVariable, default_type, i32

Signature = Callable[[str], Graph | None]  # a graph by its name

_WANTED = {"number": "a number", "float": "a float", "int": "an integer", "index": "i32 or i64"}
# The largest number of a type, and the first that is rounded to infinity.
_LARGEST = {
    "f16": (65504.0, 65520.0),
    "bf16": (3.3895313892515355e38, (2 - 2**-8) * 2.0**127),
    "f32": (3.4028234663852886e38, (2 - 2**-24) * 2.0**127),
}


def literal_fault(value: int | float, t: DType) -> str:
    """Why a literal cannot be a number of type `t`; "" where it can."""
    if isinstance(t, GenericDType):
        faults = ((literal_fault(value, i), i) for i in t.instances)
        return next((f"{f}, and {t} may be {i}" for f, i in faults if f), "")
    if t.kind == "b":
        return "" if value in (0, 1) else f"{value} is neither 0 nor 1: {t} is wanted"
    if t.is_integer:
        if type(value) is float:
            return f"{value} is not an integer: {t} is wanted"
        low = 0 if t.kind == "u" else -(2 ** (t.bits - 1))
        high = low + 2**t.bits - 1
        return "" if low <= value <= high else f"{value} does not fit {t}: {low} to {high}"
    largest, limit = _LARGEST.get(t.name, (0.0, float("inf")))
    if limit <= abs(value) != float("inf"):
        return f"{value} does not fit {t}, whose largest number is {largest:.6g}"
    return ""


def amount(count: int, what: str) -> str:
    """``1 result``, ``2 results``"""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def symbols_of(dims: Sequence) -> set[str]:
    """The symbols that occur in some dims."""
    found: set[str] = set()
    for d in dims:
        if isinstance(d, Expr):
            found |= d.symbols()
    return found


def bound_symbols(graph: Graph) -> dict[str, str]:
    """The symbols that inputs bind, by standing alone in a dim; each with the first input."""
    bound: dict[str, str] = {}
    for binding in graph.inputs:
        for d in binding.type.shape if binding.type else ():
            name = d.lone_symbol() if isinstance(d, Expr) else None
            if name:
                bound.setdefault(name, binding.name.text)
    return bound


def unify(
    graph: Graph, types: Sequence[TensorType | int | float], what: str = "", first: int = 0
) -> tuple[dict[str, Any], tuple[TensorType, ...]]:
    """Binds the symbols of the graph's inputs to the dims of the operands, and its type variables
    to their element types.

    Returns both by name, and the types of the inputs. `what` says in messages who calls; the
    operand that a Mismatch points at is counted from `first`.
    """
    name = graph.name.text
    what = what or name
    count = len(graph.inputs)
    if len(types) != count:
        form = ", ".join(f"{b.name.text}: {b.type}" for b in graph.inputs)
        raise Mismatch(
            f"{what} takes {amount(count, 'operand')}, not {len(types)}",
            hint=f"its form is {name}({form})",
        )
    symbols: dict[str, Any] = {}
    places: dict[str, str] = {}
    typed: dict[str, int] = {}  # the operand that binds a type variable
    adapting: list[int] = []  # numbers that take the type that other operands have
    for k, (binding, t) in enumerate(zip(graph.inputs, types, strict=True)):
        expected = binding.type
        assert expected is not None  # the grammar wants the types of inputs
        if not isinstance(t, TensorType):
            if expected.dtype.is_generic:
                adapting.append(k)
            else:
                _literal_input(what, binding.name.text, expected, t, first + k)
            continue
        _same_kind(what, binding.name.text, expected, t, first + k)
        if isinstance(expected.dtype, TypeVariable):
            _bind_type(graph, what, expected.dtype, t.dtype, symbols, typed, k, first)
        _bind_dims(what, binding.name.text, expected, t, symbols, places, first + k)
    for k in sorted(adapting, key=lambda k: type(types[k]) is int):  # floats say more
        _adapt_literal(graph, what, types[k], symbols, k, first)
    return symbols, _check_dims(graph, types, symbols, what, first)


def _bind_dims(
    what: str, name: str, declared: TensorType, t: TensorType, symbols: dict[str, Any],
    places: dict[str, str], at: int,
) -> None:  # fmt: skip
    """The symbols that stand alone in a declared type are the sizes of an operand."""
    for axis, (dim, size) in enumerate(zip(declared.shape, t.shape, strict=True)):
        symbol = dim.lone_symbol() if isinstance(dim, Expr) else None
        if symbol is None:
            continue
        first_size = symbols.setdefault(symbol, size)
        where = f"axis {axis} of {name}"
        if first_size != size:
            raise Mismatch(
                f"{what} wants one size as {symbol}, "
                f"but it is {first_size} in {places[symbol]} and {size} in {where}",
                at,
            )
        places.setdefault(symbol, where)


def _check_dims(graph: Graph, types, symbols, what: str, first: int) -> tuple[TensorType, ...]:
    """The inputs' types under `symbols`; Mismatch where an operand has another dim."""
    bound = []
    for k, (binding, t) in enumerate(zip(graph.inputs, types, strict=True)):
        assert binding.type is not None
        expected = substitute(binding.type, symbols)
        if isinstance(t, TensorType) and t != expected:
            declared = "" if expected == binding.type else f" (declared {binding.type})"
            raise Mismatch(
                f"{what} wants {expected} as {binding.name.text}{declared}, not {t}", first + k
            )
        bound.append(expected)
    return tuple(bound)


def _bind_type(
    graph: Graph, what: str, variable: TypeVariable, t: DType, symbols: dict[str, Any],
    typed: dict[str, int], k: int, first: int,
) -> None:  # fmt: skip
    """Operand `k` says what a type variable is, or must have the type that another has said."""
    name, given = variable.name, graph.inputs[k].name.text
    if not variable.admits(t):
        message = f"{what} wants {_WANTED[variable.family]} as {name}, but it is {t} in {given}"
        if isinstance(t, GenericDType):
            message += f", which may be {next(i for i in t.instances if not variable.admits(i))}"
        raise Mismatch(message, first + k)
    bound, by = symbols.setdefault(name, t), typed.setdefault(name, k)
    if bound is not t:
        there = graph.inputs[by].name.text
        raise Mismatch(
            f"{what} wants one element type as {name}, "
            f"but it is {bound} in {there} and {t} in {given}",
            first + k,
            f"calls of graphs do not convert: cast(…, dtype={bound})",
            (first + by, f"{name} is {bound} here"),
        )


def _adapt_literal(
    graph: Graph, what: str, value: Any, symbols: dict[str, Any], k: int, first: int
) -> None:
    """A number takes the type of the other operands; alone, f32, or i32 where it is an integer."""
    declared, name = graph.inputs[k].type, graph.inputs[k].name.text
    assert declared is not None
    variable = declared.dtype
    assert isinstance(variable, TypeVariable)
    alone = i32 if type(value) is int and variable.admits(i32) else default_type(variable)
    t = symbols.setdefault(variable.name, alone)
    _literal_input(what, name, declared.with_dtype(t), value, first + k)


def types_of(graph: Graph, symbols: Mapping[str, Any]) -> str:
    """What a graph's type variables are, to go behind its name: ``<f16>``; "" where it has none."""
    found = [str(symbols[p.name.text]) for p in graph.type_parameters]
    return f"<{','.join(found)}>" if found else ""


def substitute(t: TensorType, symbols: Mapping[str, Any]) -> TensorType:
    """`t` with symbols replaced by dims. Mismatch where one is negative or divides by zero."""
    if t.is_concrete:
        return t
    try:
        shape = tuple(evaluate(d, symbols) for d in t.shape)  # pyright: ignore[reportArgumentType]
    except ZeroDivisionError:
        values = ", ".join(f"{s} = {d}" for s, d in symbols.items())
        raise Mismatch(f"a dim of {t} is divided by zero with {values}") from None
    if any(type(d) is int and d < 0 for d in shape):
        values = ", ".join(f"{s} = {d}" for s, d in symbols.items())
        raise Mismatch(f"a dim of {t} is negative with {values}")
    return TensorType(t.dtype.bound(symbols), shape)


def _literal_input(what: str, name: str, declared: TensorType, value, at: int) -> None:
    if declared.rank:
        raise Mismatch(f"{what} wants {declared} as {name}, not the number {value}", at)
    fault = literal_fault(value, declared.dtype)
    if fault:
        raise Mismatch(fault, at)


def _same_kind(what: str, name: str, declared: TensorType, t: TensorType, at: int) -> None:
    if t.dtype is not declared.dtype and not declared.dtype.is_generic:
        hint = f"calls of graphs do not convert: cast(…, dtype={declared.dtype})"
        if t.dtype.is_generic:
            hint += f", or make it generic, too: {what.split()[0]}<{t.dtype!r}>(…)"
        raise Mismatch(f"{what} wants {declared} as {name}, not {t}", at, hint)
    if t.rank != declared.rank:
        raise Mismatch(f"{what} wants {declared} as {name}, not {t}", at)


def resolve_call(
    graph: Graph, types: Sequence[TensorType | int | float], what: str = "", first: int = 0
) -> tuple[Resolved, dict[str, Any]]:
    """Resolved types of a call of `graph`, and the callee's symbols in the caller's dims (its type
    variables in the caller's element types).

    `what` and `first` as for `unify`.
    """
    symbols, operands = unify(graph, types, what, first)
    results = tuple(substitute(t, symbols) for t in graph.results)
    return Resolved(operands, results), symbols


def mismatch_span(s: Apply, m: Mismatch) -> Span:
    """The place in a statement that a Mismatch is about."""
    if isinstance(m.at, int) and m.at < len(s.operands):
        return s.operands[m.at].span
    for a in s.attrs:
        if a.name.text == m.at:
            return a.span
    return s.callee.span


# --- at the start of a run ------------------------------------------------------------------------


def bind_symbols(
    graph: Graph,
    input_types: Sequence[TensorType] | Mapping[str, TensorType],
    source: Source | None = None,
) -> dict[str, Any]:
    """The sizes of the graph's symbols, and what its type variables are, given the concrete types
    of its inputs.

    `input_types` are in the order of the inputs, or by their names. Raises InputError that names
    the input, the declared and the given type; for a symbol with two sizes, both inputs. `source`
    is the graph's text, for the message.
    """
    types = _in_order(graph, input_types, source)
    try:
        symbols, _ = unify(graph, types, f"graph {graph.name.text}")
    except Mismatch as m:
        at = graph.inputs[m.at] if isinstance(m.at, int) else None
        span = at.type_span if at else graph.name.span
        raise InputError(m.message, span=span, source=source) from None
    return symbols


def _in_order(graph: Graph, input_types, source: Source | None) -> list[TensorType]:
    if not isinstance(input_types, Mapping):
        return list(input_types)
    names = [b.name.text for b in graph.inputs]
    extra = [n for n in input_types if n not in names]
    missing = [n for n in names if n not in input_types]
    if extra:
        raise InputError(
            f"graph {graph.name.text} has no input {extra[0]}",
            span=graph.name.span,
            source=source,
            hint=did_you_mean(extra[0], missing) or f"it takes {', '.join(names) or 'none'}",
        )
    if missing:
        inputs = "inputs" if len(missing) > 1 else "input"
        raise InputError(
            f"graph {graph.name.text} needs the {inputs} {', '.join(missing)}",
            span=next(b.name.span for b in graph.inputs if b.name.text == missing[0]),
            source=source,
        )
    return [input_types[n] for n in names]
