"""What a caller hands over, checked against what a graph declares and turned into arrays."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from opstep.api.external import array_of, without_gradient
from opstep.runtime.ir.diagnostics import did_you_mean
from opstep.runtime.ir.dims import Expr
from opstep.runtime.ir.errors import InputError, MissingInputs, UnboundSymbols, UnknownName
from opstep.runtime.ir.graph import Graph, Source
from opstep.runtime.ir.types import (
    DTYPES,
    DType,
    TensorType,
    TypeVariable,
    boolean,
    default_type,
    dtype_of,
    f32,
    i32,
    promote,
)
from opstep.runtime.ir.verify import bind_symbols
from opstep.runtime.ir.wording import Argument, Wording

if TYPE_CHECKING:
    from opstep.api.program import Program


def inputs_for(program: Program, graph: Graph, inputs: Any) -> Any:
    """What a graph runs on: `inputs`, or the program's example where they are None and it fits."""
    if inputs is not None:
        return inputs
    names = [b.name.text for b in graph.inputs]
    if not names or any(n not in program.example for n in names):
        return {}
    return {n: program.example[n] for n in names}


def conform(
    graph: Graph, inputs: Mapping[str, Any], source: Source | None
) -> tuple[list[np.ndarray], tuple[TensorType, ...]]:
    """The arrays for a graph's inputs in order, and their concrete types. Raises `InputError`."""
    names = [b.name.text for b in graph.inputs]
    if not isinstance(inputs, Mapping):
        raise InputError(
            f"inputs are given as a {type(inputs).__name__}; they are arrays by name",
            hint=f"write {{{', '.join(f'{n!r}: …' for n in names)}}}",
        )
    for name in inputs:
        if name not in names:
            message = f"graph {graph.name.text} has no input {name}"
            raise UnknownName(message, name, names, "its inputs are")
    arrays = []
    variables = type_variables(graph, inputs)
    for binding in graph.inputs:
        name = binding.name.text
        assert binding.type is not None
        if name not in inputs:
            missing = f"input {name}: {binding.type} is missing"
            raise MissingInputs(missing, [name], span=binding.name.span, source=source)
        value, t = inputs[name], binding.type.dtype
        arrays.append(
            as_array(f"input {name}", value, t.bound(variables) if _is_bare(value) else t)
        )
    types = tuple(TensorType(dtype_of(a.dtype), a.shape) for a in arrays)
    bind_symbols(graph, types, source)
    return arrays, types


def type_variables(graph: Graph, inputs: Mapping[str, Any]) -> dict[str, DType]:
    """What the graph's type variables are: the types of arrays; where there are none f32, or i32
    for integers.
    """
    found: dict[str, DType] = {}
    bare: dict[str, DType] = {}
    for binding in graph.inputs if graph.type_parameters else ():
        value, t = inputs.get(binding.name.text), binding.type and binding.type.dtype
        if value is None or not isinstance(t, TypeVariable):
            continue
        array = _read(f"input {binding.name.text}", value)
        if not _is_bare(value):
            with suppress(KeyError):  # an array of no element type is reported where it is taken
                found.setdefault(t.name, dtype_of(array.dtype))
        elif array.dtype.kind in "biuf":
            own = {"b": boolean, "f": f32}.get(array.dtype.kind, i32)
            own = own if t.admits(own) else default_type(t)
            bare[t.name] = promote(bare.get(t.name, own), own)
    return bare | found


def input_types(graph: Graph, symbols: Mapping[str, Any]) -> tuple[TensorType, ...]:
    """The graph's input types with its symbols replaced; raises where one is not given."""
    symbols = bound_types(graph, symbols)
    types = []
    for binding in graph.inputs:
        assert binding.type is not None
        bound = binding.type.bind(symbols)
        if not bound.is_concrete:
            free = sorted({s for d in bound.shape if isinstance(d, Expr) for s in d.symbols()})
            message = f"input {binding.name.text}: {binding.type} needs a size for "
            raise UnboundSymbols(message + ", ".join(free), free)
        if not bound.fits:
            raise InputError(f"input {binding.name.text}: {bound} does not fit into any memory")
        types.append(bound)
    return tuple(types)


def bound_types(graph: Graph, symbols: Mapping[str, Any]) -> dict[str, Any]:
    """Sizes and element types by name, ``{"N": 8, "T": "f16"}``, with the types themselves, and
    defaults for those that are not there.
    """
    for name, t in symbols.items():
        if isinstance(t, str) and t not in DTYPES:
            message = f"{name}: there is no element type {t}"
            raise InputError(message, hint=did_you_mean(t, DTYPES))
    found = {name: DTYPES[t] if isinstance(t, str) else t for name, t in symbols.items()}
    check_kinds(graph, found)
    return default_types(graph) | found


def default_types(graph: Graph) -> dict[str, DType]:
    """What type variables are where nothing is said."""
    variables = [p.variable for p in graph.type_parameters]
    return {v.name: default_type(v) for v in variables}


def check_kinds(graph: Graph, symbols: Mapping[str, int | DType]) -> None:
    """Complains where a symbol is to be a type, or a type variable a size or none of its family."""
    variables = {p.name.text: p.variable for p in graph.type_parameters}
    for name, size in symbols.items():
        problem = ""
        if isinstance(size, DType) != (name in variables):
            problem = "an element type" if name in variables else "a size"
        elif isinstance(size, DType) and not variables[name].admits(size):
            problem = f"one of {' '.join(t.name for t in variables[name].instances)}"
        if problem:
            raise InputError(Wording(given_symbol(name, size), f": {name} is {problem}"))


def given_symbol(name: str, size: int | DType) -> Argument:
    return Argument("symbols", {name: size.name if isinstance(size, DType) else size})


def _is_bare(value: Any) -> bool:
    """Whether it has no element type of its own."""
    return isinstance(value, (bool, int, float, list, tuple))


def conform_one(what: str, t: TensorType, value: Any) -> np.ndarray:
    """An array of exactly this type. Raises `InputError`."""
    array = as_array(what, value, t.dtype)
    if array.shape != t.shape:
        actual = TensorType(t.dtype, array.shape)
        raise InputError(f"{what} is {t}, not {actual}")
    return array


def as_array(what: str, value: Any, dtype: DType) -> np.ndarray:
    """`value` as an array of the wanted element type.

    Arrays must have it, or any where it is a type variable; numbers and lists, which have none of
    their own, are converted where that loses nothing but precision.
    """
    array = _read(what, value)
    if _is_bare(value) and _converts(array.dtype, dtype):
        return array.astype(dtype.numpy)
    try:
        actual = dtype_of(array.dtype)
    except KeyError:
        raise InputError(
            f"{what} has elements of type {array.dtype}, which no tensor has"
        ) from None
    if actual is not dtype and not dtype.is_generic:
        name = dtype.numpy.name
        way = f".astype({name!r})" if hasattr(value, "astype") else f"to {name}"
        raise InputError(
            f"{what} has elements of type {actual}, not {dtype}",
            hint=f"convert it: {way}",
        )
    return array


def _read(what: str, value: Any) -> np.ndarray:
    if type(value) is np.ndarray:
        return value
    value = without_gradient(value)
    try:
        if hasattr(value, "__dlpack__") and not hasattr(value, "__array__"):
            return np.from_dlpack(value)
        return np.asarray(value)
    except Exception as error:  # whatever a foreign object raises when asked for its elements
        array = array_of(value)
        if array is None:
            raise InputError(f"{what} cannot be read as an array: {error}") from None
        return array


def _converts(actual: np.dtype, target: DType) -> bool:
    """Whether a number or list of this NumPy dtype may become `target`."""
    order = "biuf"
    kind = {"b": "b", "i": "i", "u": "i", "f": "f"}.get(actual.kind)
    return kind is not None and order.index(kind) <= order.index(target.kind)
