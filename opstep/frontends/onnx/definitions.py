"""What ONNX says itself of operators that have no rule: functions of others."""

from __future__ import annotations

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
