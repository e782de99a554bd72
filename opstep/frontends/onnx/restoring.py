"""Ops that our own exporter wrote as functions of several nodes, as the ops that they were.

A node's metadata says so (``opstep.call``), and is believed where exporting that op again gives the
function that the file has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from opstep.frontends.onnx.body import Body
from opstep.runtime.ir.diagnostics import OpstepError
from opstep.runtime.ir.dims import Expr
from opstep.runtime.ir.graph import Apply, Literal, Provenance
from opstep.runtime.ir.op import OPS, Mismatch, Ref, complete, resolve
from opstep.runtime.ir.parser import parse
from opstep.runtime.ir.types import DTYPES
from opstep.runtime.transforms.builder import Var

if TYPE_CHECKING:
    from onnx import FunctionProto, NodeProto

DOMAIN = "opstep.ops"
CALL, AT = "opstep.call", "opstep.at"


def metadata_of(node: NodeProto) -> dict[str, str]:
    return {p.key: p.value for p in node.metadata_props}


def restored(
    b: Body, node: NodeProto, function: FunctionProto, inputs: Sequence[Any],
    var: Callable[[Any], Var],
) -> list[Var] | None:  # fmt: skip
    """The results of the op, written; None where the node is a call like any other."""
    said = _statement(metadata_of(node).get(CALL, ""))
    op = OPS.get(said.callee.text) if said else None
    if said is None or op is None or op.host or op.foreign or len(said.operands) > len(inputs):
        return None
    attrs = {a.name.text: a.value for a in said.attrs}
    if any(_has_symbols(v) for v in attrs.values()) or None in inputs[: len(said.operands)]:
        return None
    operands = [
        o.value if isinstance(o, Literal) else var(v)
        for o, v in zip(said.operands, inputs, strict=False)
    ]
    try:
        completed = complete(op, attrs)
        resolved = resolve(op, [o.type if isinstance(o, Var) else o for o in operands], completed)
        if not _is_what_is_exported(op, operands, resolved, completed, function):
            return None
    except Mismatch:
        return None
    found = b.apply(op, tuple(operands), {**completed})
    return [found] if isinstance(found, Var) else list(found)


def origin_of(text: str) -> Provenance | None:
    """What ``at`` said of a statement that was exported."""
    found = _statement(f"f() at {text}") if text else None
    return found.at if found else None


def _statement(text: str) -> Apply | None:
    try:
        module = parse(f"graph main() {{\n  y = {text}\n}}\n") if text else None
    except OpstepError:
        return None
    body = module.graphs["main"].body if module and "main" in module.graphs else ()
    return body[0] if len(body) == 1 and isinstance(body[0], Apply) else None


def _has_symbols(value: Any) -> bool:
    if isinstance(value, Ref):
        return value.name not in DTYPES
    if isinstance(value, tuple):
        return any(map(_has_symbols, value))
    return isinstance(value, Expr)


def _is_what_is_exported(
    op: Any, operands: Sequence[Any], resolved: Any, attrs: Mapping[str, Any], function: Any
) -> bool:
    from opstep.frontends.onnx.export_functions import Functions
    from opstep.frontends.onnx.export_nodes import NeedsNumber, Unsayable

    variables = [
        o if isinstance(o, Var) else Var(f"x{k}", resolved.operands[k])
        for k, o in enumerate(operands)
    ]
    written = Functions(None, False, False)  # pyright: ignore[reportArgumentType]
    try:
        found = written.op(op, variables, resolved, attrs)
    except (NeedsNumber, Unsayable):
        return False
    return found is not None and _content(written.protos[DOMAIN, found[0]]) == _content(function)


def _content(function: FunctionProto) -> bytes:
    from onnx import FunctionProto

    bare = FunctionProto()
    bare.CopyFrom(function)
    bare.ClearField("name")
    return bare.SerializeToString(deterministic=True)
