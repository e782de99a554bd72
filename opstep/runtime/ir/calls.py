"""How operands meet the declared inputs of a graph: at a call, and at the start of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from opstep.runtime.ir.diagnostics import did_you_mean
from opstep.runtime.ir.dims import Dim, Expr, evaluate
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.graph import Graph, Source
from opstep.runtime.ir.op import Mismatch, Resolved
from opstep.runtime.ir.types import DType, TensorType

Signature = Callable[[str], Graph | None]  # a graph by its name

_LARGEST = {"f16": 65504.0, "bf16": 3.3895313892515355e38, "f32": 3.4028234663852886e38}


def literal_fault(value: int | float, t: DType) -> str:
    """Why a literal cannot be a number of type `t`; "" where it can."""
    if t.kind == "b":
        return "" if value in (0, 1) else f"{value} is neither 0 nor 1: {t} is wanted"
    if t.is_integer:
        if type(value) is float:
            return f"{value} is not an integer: {t} is wanted"
        low = 0 if t.kind == "u" else -(2 ** (t.bits - 1))
        high = low + 2**t.bits - 1
        return "" if low <= value <= high else f"{value} does not fit {t}: {low} to {high}"
    largest = _LARGEST.get(t.name)
    if largest is not None and largest < abs(value) != float("inf"):
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
) -> tuple[dict[str, Dim], tuple[TensorType, ...]]:
    """Binds the symbols of the graph's inputs to the dims of the operands.

    Returns the symbols and the types of the inputs. `what` says in messages who calls; the operand
    that a Mismatch points at is counted from `first`.
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
    symbols: dict[str, Dim] = {}
    places: dict[str, str] = {}
    for k, (binding, t) in enumerate(zip(graph.inputs, types, strict=True)):
        expected = binding.type
        assert expected is not None  # the grammar wants the types of inputs
        if not isinstance(t, TensorType):
            _literal_input(what, binding.name.text, expected, t, first + k)
            continue
        _same_kind(what, binding.name.text, expected, t, first + k)
        for axis, (declared, size) in enumerate(zip(expected.shape, t.shape, strict=True)):
            symbol = declared.lone_symbol() if isinstance(declared, Expr) else None
            if symbol is None:
                continue
            first_size = symbols.setdefault(symbol, size)
            where = f"axis {axis} of {binding.name.text}"
            if first_size != size:
                raise Mismatch(
                    f"{what} wants one size as {symbol}, "
                    f"but it is {first_size} in {places[symbol]} and {size} in {where}",
                    first + k,
                )
            places.setdefault(symbol, where)
    return symbols, _check_dims(graph, types, symbols, what, first)


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


def substitute(t: TensorType, symbols: Mapping[str, Dim]) -> TensorType:
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
    return TensorType(t.dtype, shape)


def _literal_input(what: str, name: str, declared: TensorType, value, at: int) -> None:
    if declared.rank:
        raise Mismatch(f"{what} wants {declared} as {name}, not the number {value}", at)
    fault = literal_fault(value, declared.dtype)
    if fault:
        raise Mismatch(fault, at)


def _same_kind(what: str, name: str, declared: TensorType, t: TensorType, at: int) -> None:
    if t.dtype is not declared.dtype:
        raise Mismatch(
            f"{what} wants {declared} as {name}, not {t}",
            at,
            f"calls of graphs do not convert: cast(…, dtype={declared.dtype})",
        )
    if t.rank != declared.rank:
        raise Mismatch(f"{what} wants {declared} as {name}, not {t}", at)


def resolve_call(
    graph: Graph, types: Sequence[TensorType | int | float], what: str = "", first: int = 0
) -> tuple[Resolved, dict[str, Dim]]:
    """Resolved types of a call of `graph`, and the callee's symbols in the caller's dims.

    `what` and `first` as for `unify`.
    """
    symbols, operands = unify(graph, types, what, first)
    results = tuple(substitute(t, symbols) for t in graph.results)
    return Resolved(operands, results), symbols


# --- at the start of a run ------------------------------------------------------------------------


def bind_symbols(
    graph: Graph,
    input_types: Sequence[TensorType] | Mapping[str, TensorType],
    source: Source | None = None,
) -> dict[str, int]:
    """The sizes of the graph's symbols, given the concrete types of its inputs.

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
    return symbols  # pyright: ignore[reportReturnType] - concrete types bind to ints


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
