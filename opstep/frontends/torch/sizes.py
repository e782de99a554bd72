"""Symbols of an exported program: what they are called, and which sizes PyTorch exported it for."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from opstep.frontends.torch.body import Body, Var
from opstep.frontends.torch.dims import Symbols
from opstep.frontends.torch.naming import identifier
from opstep.runtime.ir.dims import Dim, symbol
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.graph import Apply, Assert, Name
from opstep.runtime.ir.types import TensorType, i64

_COMPARED = {
    ast.Eq: "equal", ast.NotEq: "not_equal", ast.Lt: "less", ast.LtE: "less_equal",
    ast.Gt: "greater", ast.GtE: "greater_equal",
}  # fmt: skip
_SIGNS = {
    "equal": "==", "not_equal": "!=", "less": "<", "less_equal": "<=", "greater": ">",
    "greater_equal": ">=",
}  # fmt: skip
_SIZE = re.compile(r"L(\[[^()]*\])\.size\(\)\[(\d+)\]")


# --- names ----------------------------------------------------------------------------------------


def symbol_names(exported: ExportedProgram, shapes: Any, model: Any) -> dict[str, str]:
    """Names for sympy's symbols: those of the `Dim`s in `shapes`, as `torch.export` takes them."""
    named: dict[str, str] = {}
    for value, shape in zip(_inputs(exported), _shapes(exported, shapes, model), strict=False):
        if not isinstance(value, torch.Tensor) or not shape:
            continue
        axes = shape.items() if isinstance(shape, Mapping) else enumerate(shape)
        for axis, dim in axes:
            dim = getattr(dim, "root", dim)  # of Dim("n") * 2
            size = value.shape[axis]
            symbols = size.node.expr.free_symbols if isinstance(size, torch.SymInt) else ()
            if len(symbols) == 1 and isinstance(getattr(dim, "__name__", None), str):
                named.setdefault(next(iter(symbols)).name, identifier(dim.__name__))
    return named


def _inputs(exported: ExportedProgram) -> list[Any]:
    """The user's inputs as the graph has them, in order."""
    nodes = {n.name: n for n in exported.graph.nodes if n.op == "placeholder"}
    names = [
        s.arg.name for s in exported.graph_signature.input_specs if s.kind.name == "USER_INPUT"
    ]
    return [nodes[n].meta.get("val") if n in nodes else None for n in names]


def _shapes(exported: ExportedProgram, shapes: Any, model: Any) -> Iterator[Any]:
    """What `shapes` says of each input, in the order of the graph."""
    for k, (name, value) in enumerate(_arguments(exported, model).items()):
        if isinstance(shapes, Mapping):
            said = shapes.get(name)
        else:
            said = shapes[k] if shapes and k < len(shapes) else None
        yield from _each(value, said)


def _arguments(exported: ExportedProgram, model: Any) -> Mapping[str, Any]:
    """The example inputs by the names of the arguments of `forward`."""
    args, kwargs = exported.example_inputs or ((), {})
    if model is not None:
        try:
            return inspect.signature(model.forward).bind(*args, **kwargs).arguments
        except (TypeError, ValueError):
            pass
    signature = exported.module_call_graph[0].signature
    names = getattr(signature, "forward_arg_names", None) or map(str, range(len(args)))
    return dict(zip(names, args, strict=False)) | dict(kwargs)


def _each(value: Any, said: Any) -> Iterator[Any]:
    """What is said of each leaf of a nested argument."""
    if isinstance(value, torch.Tensor):
        yield said
    elif isinstance(value, Mapping) and isinstance(said, Mapping):
        for key, inner in value.items():
            yield from _each(inner, said.get(key))
    elif isinstance(value, list | tuple) and isinstance(said, list | tuple):
        for inner, one in zip(value, said, strict=False):
            yield from _each(inner, one)
    else:
        yield from (None for _ in pytree.tree_leaves(value))


# --- conditions -----------------------------------------------------------------------------------


def assert_sizes(
    exported: ExportedProgram, model: Any, symbols: Symbols, used: set[str], body: Body
) -> None:
    """Puts asserts at the start of `main`: PyTorch traced the model for these sizes only. Raises
    `InputError` for a condition that cannot be written.
    """
    rest, body.statements, body.at = body.statements, [], None
    for theirs, found in exported.range_constraints.items():
        name = symbols.name(str(theirs))
        if name not in used:
            continue
        lower, upper = found.lower, found.upper
        if lower.is_Integer and lower >= 2:
            _condition(body, "greater_equal", symbol(name), int(lower))
        if upper.is_Integer:
            _condition(body, "less_equal", symbol(name), int(upper))
    inputs = _by_source(exported, model)
    for text in getattr(exported, "_guards_code", None) or ():
        _guard(text, inputs, symbols, body)
    body.statements += rest


def _condition(body: Body, op: str, a: Dim, b: Dim) -> None:
    if (isinstance(a, int) and isinstance(b, int)) or (op == "equal" and a == b):
        return  # it held when the model was exported, or always
    message = f"the model was exported for {a} {_SIGNS[op]} {b}"
    if any(isinstance(s, Assert) and s.message == message for s in body.statements):
        return
    fine = getattr(body, op)(_extent(body, a), _extent(body, b))
    body.stems[fine.name] = "fits"
    body.statements.append(Assert(Name(fine.name), message))


def _extent(body: Body, d: Dim) -> Var | int:
    """A size as an operand; the same one where it was needed before."""
    if isinstance(d, int):
        return d
    for s in body.statements:
        if isinstance(s, Apply) and s.callee.text == "extent" and s.attrs[0].value == (d,):
            return Var(s.results[0].name.text, TensorType(i64, ()))
    found = body.number(d)
    body.stems[found.name] = f"{d}_size"
    return found


def _by_source(exported: ExportedProgram, model: Any) -> dict[str, torch.Tensor]:
    """The inputs by what guards call them: ``['x'][0]``."""
    leaves = pytree.tree_flatten_with_path(dict(_arguments(exported, model)))[0]
    paths = [pytree.keystr(path) for path, _ in leaves]
    values = _inputs(exported)
    if len(paths) != len(values):
        return {}
    return {p: v for p, v in zip(paths, values, strict=True) if isinstance(v, torch.Tensor)}


def _guard(text: str, inputs: Mapping[str, torch.Tensor], symbols: Symbols, body: Body) -> None:
    """A guard such as ``(L['x'].size()[0] % 3) == 0``."""
    found: dict[str, Dim] = {}

    def size(match: re.Match) -> str:
        path, axis = match[1], int(match[2])
        value = inputs.get(path)
        if value is None:
            raise _unwritable(text)
        name = f"d{len(found)}"
        found[name] = symbols.dim(value.shape[axis])
        return name

    tree = ast.parse(_SIZE.sub(size, text), mode="eval").body
    if (
        not isinstance(tree, ast.Compare)
        or len(tree.ops) != 1
        or type(tree.ops[0]) not in _COMPARED
    ):
        raise _unwritable(text)
    a, b = _dim(tree.left, found, text), _dim(tree.comparators[0], found, text)
    _condition(body, _COMPARED[type(tree.ops[0])], a, b)


def _dim(tree: ast.expr, names: Mapping[str, Dim], text: str) -> Dim:
    match tree:
        case ast.Constant(value=int(value)):
            return value
        case ast.Name(id=name) if name in names:
            return names[name]
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -1 * _dim(inner, names, text)
        case ast.BinOp(left=left, op=op, right=right):
            a, b = _dim(left, names, text), _dim(right, names, text)
            match op:
                case ast.Add():
                    return a + b
                case ast.Sub():
                    return a - b
                case ast.Mult():
                    return a * b
                case ast.FloorDiv():
                    return a // b
                case ast.Mod():
                    return a % b
    raise _unwritable(text)


def _unwritable(text: str) -> InputError:
    return InputError(
        f"the model was exported for sizes with {text}, which cannot be written as an assert",
        hint='name the sizes: torch.export.Dim("batch") in place of Dim.AUTO',
    )
