"""What ONNX says itself of operators that have no rule: functions of others."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import onnx

from opstep.frontends.onnx.errors import Untranslatable
from opstep.frontends.onnx.types import NUMBERS

if TYPE_CHECKING:
    from onnx import FunctionProto, NodeProto


def definition_of(
    node: NodeProto, inputs: list[Any], version: int, domain: str
) -> FunctionProto | None:
    """The function that a node is, with inputs of these types; None where it is none. Raises
    `Untranslatable`.
    """
    if not onnx.defs.has(node.op_type, domain):
        return None
    try:
        schema: Any = onnx.defs.get_schema(node.op_type, version, domain)
    except onnx.defs.SchemaError:
        return None
    text = b""
    if schema.has_context_dependent_function:
        plain = onnx.NodeProto()
        plain.CopyFrom(node)
        types = [_type(v).SerializeToString() for v in inputs]
        versions = [v for v in schema.context_dependent_function_opset_versions if v <= version]
        if versions:
            try:
                text = schema.get_context_dependent_function_with_opset_version(
                    max(versions), plain.SerializeToString(), types
                )
            except onnx.shape_inference.InferenceError as error:
                raise Untranslatable(str(error)) from None
    elif schema.has_function:
        versions = [v for v in schema.function_opset_versions if v <= version]
        if versions:
            text = schema.get_function_with_opset_version(max(versions))
    if not text:
        return None
    found = onnx.FunctionProto.FromString(text)
    found.name = found.name or node.op_type
    return found


def check_types(
    op: str, inputs: Sequence[Any], results: Sequence[Any], version: int, domain: str
) -> None:
    """Raises `Untranslatable` where ONNX gives a result the type of an input, and it has another:
    functions of floats make f32 of integers.
    """
    for result, place in _types_of_inputs(op, version, domain):
        given = inputs[place] if place < len(inputs) else None
        found = results[result] if result < len(results) else None
        if given is None or found is None or found.type.dtype is given.type.dtype:
            continue
        raise Untranslatable(f"its result would be {found.type.dtype}, not {given.type.dtype}")


@cache
def _types_of_inputs(op: str, version: int, domain: str) -> list[tuple[int, int]]:
    """Results that have the type of an input, with its place."""
    try:
        schema: Any = onnx.defs.get_schema(op, version, domain)
    except onnx.defs.SchemaError:
        return []
    variables = {c.type_param_str for c in schema.type_constraints}
    places = {i.type_str: k for k, i in reversed(list(enumerate(schema.inputs)))}
    types = [o.type_str for o in schema.outputs]
    return [(k, places[t]) for k, t in enumerate(types) if t in variables and t in places]


def _type(value: Any) -> onnx.TypeProto:
    """As ONNX has it; a size that is a symbol is left open."""
    if value is None:
        return onnx.TypeProto()
    shape = [d if isinstance(d, int) else str(d) for d in value.type.shape]
    return onnx.helper.make_tensor_type_proto(NUMBERS[value.type.dtype], shape)


def has_definition(op: str, domain: str) -> bool:
    """Whether ONNX says what an operator is by others, in any version."""
    if not onnx.defs.has(op, domain):
        return False
    schema: Any = onnx.defs.get_schema(op, domain)
    return schema.has_function or schema.has_context_dependent_function
