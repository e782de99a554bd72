"""Attributes of nodes as Python's values."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from opstep.frontends.onnx.errors import Untranslatable
from opstep.frontends.onnx.reading import array_of
from opstep.frontends.onnx.values import number
from opstep.runtime.ir.errors import InputError

if TYPE_CHECKING:
    from onnx import AttributeProto, NodeProto

FLOAT, INT, STRING, TENSOR, GRAPH, FLOATS, INTS, STRINGS = 1, 2, 3, 4, 5, 6, 7, 8


def of(node: NodeProto, outer: Mapping[str, Any] | None) -> dict[str, Any]:
    """By name. `outer`: those of the function that the node is in."""
    found = {}
    for attribute in node.attribute:
        if attribute.ref_attr_name:
            if outer is None or attribute.ref_attr_name not in outer:
                continue  # left out of the call, so left out here
            found[attribute.name] = outer[attribute.ref_attr_name]
        else:
            found[attribute.name] = value(attribute, outer)
    return found


def value(attribute: AttributeProto, outer: Mapping[str, Any] | None) -> Any:
    """Raises `Untranslatable` for kinds that have no counterpart."""
    match attribute.type:
        case 1:
            return number(np.float32(attribute.f))
        case 2:
            return attribute.i
        case 3:
            return attribute.s.decode("utf-8", "replace")
        case 4:
            try:
                return array_of(attribute.t, None)
            except InputError as error:
                raise Untranslatable(error.diagnostics[0].message) from None
        case 5:
            return attribute.g
        case 6:
            return [number(np.float32(f)) for f in attribute.floats]
        case 7:
            return list(attribute.ints)
        case 8:
            return [s.decode("utf-8", "replace") for s in attribute.strings]
    raise Untranslatable(f"attribute {attribute.name}: there is no counterpart of its kind")


def constant(attrs: Mapping[str, Any]) -> Any:
    """The elements of a `Constant`; None where they are sparse."""
    for name, found in attrs.items():
        if name == "value":
            return found
        if name in ("value_int", "value_ints"):
            return np.array(found, np.int64)
        if name in ("value_float", "value_floats"):
            return np.array(found, np.float32)
        if name in ("value_string", "value_strings"):
            raise Untranslatable("strings have no counterpart")
    return None


def with_defaults(node: NodeProto, attrs: Mapping[str, Any], version: int) -> dict[str, Any]:
    """With those that the operator has for what is left out: a definition names them."""
    return {**_defaults(node.op_type, node.domain, version), **attrs}


@cache
def _defaults(op: str, domain: str, version: int) -> dict[str, Any]:
    schema = onnx.defs.get_schema(op, version, domain)
    return {
        name: value(a.default_value, None)
        for name, a in schema.attributes.items()
        if a.default_value.type
    }
