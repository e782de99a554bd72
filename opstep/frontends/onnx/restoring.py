"""Ops that our own exporter wrote as other nodes, or as functions of several, as the ops that they
were.

A node's metadata says so (``opstep.call``), and is believed where exporting that op again gives the
node or the function that the file has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice, product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from opstep.frontends.onnx.body import Body
from opstep.frontends.onnx.export_functions import Functions
from opstep.frontends.onnx.export_nodes import Body as ExportBody
from opstep.frontends.onnx.export_nodes import NeedsNumber, Unsayable
from opstep.frontends.onnx.values import Known
from opstep.runtime.ir.diagnostics import OpstepError
from opstep.runtime.ir.dims import Expr, evaluate, symbol
from opstep.runtime.ir.graph import Apply, Comments, Literal, Provenance
from opstep.runtime.ir.op import OPS, Mismatch, Op, Ref, complete, resolve
from opstep.runtime.ir.parser import parse
from opstep.runtime.ir.types import DTYPES, TensorType, i64
from opstep.runtime.transforms.builder import Var

if TYPE_CHECKING:
    from onnx import FunctionProto, NodeProto

DOMAIN = "opstep.ops"
CALL, AT = "opstep.call", "opstep.at"
MOST = 16  # sizes of a shape, and what symbols in attributes may be
SIZE = "size."  # the beginning of names of sizes in functions


def metadata_of(node: NodeProto) -> dict[str, str]:
    return {p.key: p.value for p in node.metadata_props}


class Said(NamedTuple):
    """An op as the metadata of a node have it: `operands` are names of values, or numbers. Symbols
    in `attrs` are those of the graph that was exported.
    """

    op: type[Op]
    operands: tuple[str | float, ...]
    attrs: dict[str, Any]


def restored(
    b: Body, node: NodeProto, function: FunctionProto, inputs: Sequence[Any],
    var: Callable[[Any], Var],
) -> list[Var] | None:  # fmt: skip
    """The results of the op that a function was written for; None where the node is a call like any
    other.
    """
    said = _said(node)
    if said is None or len(said.operands) > len(inputs):
        return None
    count = len(said.operands)
    sizes = zip(function.input[count:], inputs[count:], strict=False)
    bound = {n.removeprefix(SIZE): _dim(v) for n, v in sizes if n.startswith(SIZE)}
    if None in inputs[:count] or None in bound.values():
        return None
    operands = [
        o if not isinstance(o, str) else var(v) for o, v in zip(said.operands, inputs, strict=False)
    ]
    attrs = {k: _bind(v, bound) for k, v in said.attrs.items()}
    if not _is_bound(said.attrs, bound):
        return None
    return _believed(
        b,
        said,
        operands,
        attrs,
        lambda: any(
            _gives(said.op, o, a, function) for o, a in _typed(operands, attrs, said, bound)
        ),
    )


def restored_node(
    b: Body, node: NodeProto, inputs: Sequence[Any], var: Callable[[Any], Var]
) -> list[Var] | None:  # fmt: skip
    """The results of the op that a node of ONNX's own was written for; None where the node says
    something else.
    """
    said = _said(node)
    named = dict(zip(node.input, inputs, strict=True))
    if said is None or any(isinstance(o, str) and named.get(o) is None for o in said.operands):
        return None
    operands = [Var(o, named[o].type) if isinstance(o, str) else o for o in said.operands]
    for found in _bindings(said.attrs, inputs):
        if not _is_bound(said.attrs, found):
            continue
        try:
            bound = _settled(said, operands, found)
        except (Mismatch, ValueError):
            continue
        attrs = {k: _bind(v, bound) for k, v in said.attrs.items()}
        made = _believed(
            b, said, operands, attrs,
            lambda attrs=attrs: _is_node(said.op, operands, attrs, node, named),
            lambda o: var(named[o.name]),
        )  # fmt: skip
        if made is not None:
            return made
    return None


def _believed(
    b: Body, said: Said, operands: Sequence[Any], attrs: Mapping[str, Any],
    check: Callable[[], bool], var: Callable[[Var], Var] = lambda o: o,
) -> list[Var] | None:  # fmt: skip
    """The op, written, where it is what was exported."""
    try:
        if not check():
            return None
        given = tuple(var(o) if isinstance(o, Var) else o for o in operands)
        found = b.apply(said.op, given, {**complete(said.op, {**attrs})})
    except (Mismatch, NeedsNumber, Unsayable):
        return None
    return [found] if isinstance(found, Var) else list(found)


def comments_of(text: str) -> Comments:
    """The comment above a graph, as it was exported: lines of text."""
    lines = text.split("\n") if text else ()
    return Comments(tuple("".join(c for c in one if c.isprintable()) for one in lines))


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


def _said(node: NodeProto) -> Said | None:
    said = _statement(metadata_of(node).get(CALL, ""))
    op = OPS.get(said.callee.text) if said else None
    if said is None or op is None or op.traits.host or op.traits.foreign:
        return None
    operands = tuple(o.value if isinstance(o, Literal) else o.text for o in said.operands)
    return Said(op, operands, {a.name.text: _symbolic(a.value) for a in said.attrs})  # pyright: ignore


def _symbolic(value: Any) -> Any:
    if isinstance(value, Ref):
        return value if value.name in DTYPES else symbol(value.name)
    return tuple(map(_symbolic, value)) if type(value) is tuple else value


def _bind(value: Any, bound: Mapping[str, Any]) -> Any:
    if type(value) is tuple:
        return tuple(_bind(v, bound) for v in value)
    return evaluate(value, bound) if isinstance(value, Expr) else value  # pyright: ignore


def _symbols(value: Any) -> set[str]:
    if type(value) is tuple:
        return {s for v in value for s in _symbols(v)}
    return set(value.symbols()) if isinstance(value, Expr) else set()


def _bindings(attrs: Mapping[str, Any], inputs: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """What symbols may be, where the elements of inputs are attributes'."""
    listed = [k for k in inputs if isinstance(k, Known) and k.type.rank == 1 and k.size <= MOST]
    choices = [
        [dict(_unified(value, k.elements.tolist())) for k in listed if k.size == len(value)]
        for value in attrs.values()
        if type(value) is tuple and _symbols(value)
    ]
    for chosen in islice(product(*choices), MOST):
        yield {name: d for one in chosen for name, d in one.items()}


def _unified(said: Sequence[Any], found: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    for one, d in zip(said, found, strict=True):
        name = one.lone_symbol() if isinstance(one, Expr) else None
        if name:
            yield name, d


def _settled(
    said: Said, operands: Sequence[Any], bound: Mapping[str, Any]
) -> Mapping[str, Any]:  # fmt: skip
    """The same where a size is -1: what is left, as the result has it."""
    if -1 not in bound.values():
        return bound
    (shape,) = (v for v in said.attrs.values() if _symbols(v))
    attrs = complete(said.op, {k: _bind(v, bound) for k, v in said.attrs.items()})
    types = [o.type if isinstance(o, Var) else o for o in operands]
    return {**bound, **dict(_unified(shape, resolve(said.op, types, attrs).results[0].shape))}


def _dim(value: Any) -> Any:
    """The only element of a size."""
    if not isinstance(value, Known) or value.size != 1:
        return None
    return value.elements.reshape(-1).tolist()[0]


def _typed(
    operands: Sequence[Any], attrs: Mapping[str, Any], said: Said, bound: Mapping[str, Any]
) -> Iterator[tuple[list[Any], Mapping[str, Any]]]:
    """Operands and attributes as they may have been: of these sizes; of symbols where a size is no
    number, or is one of the call's; of symbols alone.
    """
    yield list(operands), attrs
    for numbers in (True, False):
        names = {d: n for n, d in bound.items()}
        yield [_generic(o, names, numbers) for o in operands], said.attrs


def _generic(operand: Any, names: dict[Any, str], numbers: bool) -> Any:
    """A variable whose sizes are symbols, those that are numbers as well or not."""
    if not isinstance(operand, Var):
        return operand
    dims = (
        d if numbers and type(d) is int and d not in names
        else symbol(names.setdefault(d, f"size_{len(names)}"))
        for d in operand.shape
    )  # fmt: skip
    return Var(operand.name, operand.type.with_shape(dims))


def _gives(
    op: type[Op], operands: Sequence[Any], attrs: Mapping[str, Any], function: FunctionProto
) -> bool:
    """Whether exporting an op gives this function."""
    try:
        completed = complete(op, dict(attrs))
        resolved = resolve(op, [o.type if isinstance(o, Var) else o for o in operands], completed)
        variables = [
            o if isinstance(o, Var) else Var(f"x{k}", t)
            for k, (o, t) in enumerate(zip(operands, resolved.operands, strict=False))
            if t is not None
        ]
        written = Functions(None, False, False)  # pyright: ignore[reportArgumentType]
        found = written.op(op, variables, resolved, completed)
    except (Mismatch, NeedsNumber, Unsayable):
        return False
    return found is not None and _content(written.protos[DOMAIN, found[0]]) == _content(function)


def _is_node(
    op: type[Op], operands: Sequence[Any], attrs: Mapping[str, Any], node: NodeProto,
    named: Mapping[str, Any],
) -> bool:  # fmt: skip
    """Whether exporting an op gives this node, on these inputs."""
    completed = complete(op, {**attrs})
    resolved = resolve(op, [o.type if isinstance(o, Var) else o for o in operands], completed)
    sizes: dict[str, Any] = {}

    def size(name: str) -> Var:
        sizes[f"{SIZE}{name}"] = [symbol(name)]
        return Var(f"{SIZE}{name}", TensorType(i64, (1,)))

    written = ExportBody({o.name for o in operands if isinstance(o, Var)}, size)
    results = written.lower(op, operands, resolved, completed)
    own = [n for n in written.nodes if not n.helper]
    if len(own) != 1 or [r.name for r in results] != own[0].outputs:
        return False
    made = own[0].proto()
    if (made.op_type, made.domain, len(made.input), len(made.output)) != (
        node.op_type, node.domain, len(node.input), len(node.output)
    ) or _attributes(made) != _attributes(node):  # fmt: skip
        return False
    known: dict[str, Any] = {**sizes, **written.elements()}
    return all(_is_same(a, b, known, named) for a, b in zip(made.input, node.input, strict=True))


def _is_same(a: str, b: str, known: Mapping[str, Any], named: Mapping[str, Any]) -> bool:
    """Whether an input is what it should be: the same value, or the same elements."""
    if a not in known:
        return a == b
    found = named.get(b)
    if not isinstance(found, Known):
        return False
    wanted, elements = known[a], found.elements
    if isinstance(wanted, np.ndarray):
        fits = elements.dtype == wanted.dtype and elements.shape == wanted.shape
        return fits and elements.tobytes() == wanted.tobytes()
    return elements.reshape(-1).tolist() == list(wanted)


def _attributes(node: NodeProto) -> dict[str, bytes]:
    return {a.name: a.SerializeToString(deterministic=True) for a in node.attribute}


def _is_bound(attrs: Mapping[str, Any], bound: Mapping[str, Any]) -> bool:
    """Whether it is known what all symbols are."""
    return all(_symbols(v) <= bound.keys() for v in attrs.values())


def _content(function: FunctionProto) -> bytes:
    from onnx import FunctionProto

    bare = FunctionProto()
    bare.CopyFrom(function)
    bare.ClearField("name")
    return bare.SerializeToString(deterministic=True)
