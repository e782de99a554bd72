"""What a caller hands over, checked against what a graph declares and turned into arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from opstep.api.external import array_of, without_gradient
from opstep.runtime.ir.errors import InputError, MissingInputs, UnknownName
from opstep.runtime.ir.graph import Graph, Source
from opstep.runtime.ir.types import DType, TensorType, dtype_of
from opstep.runtime.ir.verify import bind_symbols

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
    for binding in graph.inputs:
        name = binding.name.text
        assert binding.type is not None
        if name not in inputs:
            missing = f"input {name}: {binding.type} is missing"
            raise MissingInputs(missing, [name], span=binding.name.span, source=source)
        arrays.append(as_array(f"input {name}", inputs[name], binding.type.dtype))
    types = tuple(TensorType(dtype_of(a.dtype), a.shape) for a in arrays)
    bind_symbols(graph, types, source)
    return arrays, types


def conform_one(what: str, t: TensorType, value: Any) -> np.ndarray:
    """An array of exactly this type. Raises `InputError`."""
    array = as_array(what, value, t.dtype)
    if array.shape != t.shape:
        actual = TensorType(t.dtype, array.shape)
        raise InputError(f"{what} is {t}, not {actual}")
    return array


def as_array(what: str, value: Any, dtype: DType) -> np.ndarray:
    """`value` as an array of the wanted element type.

    Arrays must have it; numbers and lists, which have none of their own, are converted where that
    loses nothing but precision.
    """
    bare = isinstance(value, (bool, int, float, list, tuple))
    value = without_gradient(value)
    try:
        if hasattr(value, "__dlpack__") and not hasattr(value, "__array__"):
            array = np.from_dlpack(value)
        else:
            array = np.asarray(value)
    except Exception as error:  # whatever a foreign object raises when asked for its elements
        array = array_of(value)
        if array is None:
            raise InputError(f"{what} cannot be read as an array: {error}") from None
    if bare and _converts(array.dtype, dtype):
        return array.astype(dtype.numpy)
    try:
        actual = dtype_of(array.dtype)
    except KeyError:
        raise InputError(
            f"{what} has elements of type {array.dtype}, which no tensor has"
        ) from None
    if actual is not dtype:
        name = dtype.numpy.name
        way = f".astype({name!r})" if hasattr(value, "astype") else f"to {name}"
        raise InputError(
            f"{what} has elements of type {actual}, not {dtype}",
            hint=f"convert it: {way}",
        )
    return array


def _converts(actual: np.dtype, target: DType) -> bool:
    """Whether a number or list of this NumPy dtype may become `target`."""
    order = "biuf"
    kind = {"b": "b", "i": "i", "u": "i", "f": "f"}.get(actual.kind)
    return kind is not None and order.index(kind) <= order.index(target.kind)
