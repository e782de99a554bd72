"""Symbols of an exported program: what they are called, and which sizes PyTorch exported it for."""

from __future__ import annotations

import ast
import functools
import inspect
import operator
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from opstep.frontends.torch.body import Body, Var
from opstep.frontends.torch.dims import Symbols
from opstep.frontends.torch.naming import identifier
from opstep.runtime.ir.dims import Dim, Expr, symbol
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
_ARITHMETIC = {
    ast.Add: (operator.add, "add"), ast.Sub: (operator.sub, "sub"), ast.Mult: (operator.mul, "mul"),
    ast.FloorDiv: (operator.floordiv, "floor_div"), ast.Mod: (operator.mod, "rem"),
}  # fmt: skip
Size = Expr | int | Var  # a number that is no dim is a scalar tensor
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
    _assert(body, _compared(body, op, a, b), f"{a} {_SIGNS[op]} {b}")


def _assert(body: Body, fits: Var | bool, text: str) -> None:
    message = f"the model was exported for {text}"
    if isinstance(fits, bool):  # it held when the model was exported
        return
    if any(isinstance(s, Assert) and s.message == message for s in body.statements):
        return
    body.statements.append(Assert(Name(fits.name), message))


def _compared(body: Body, op: str, a: Size, b: Size) -> Var | bool:
    """True where it held for all sizes that the model was exported for."""
    if (isinstance(a, int) and isinstance(b, int)) or (op == "equal" and a == b):
        return True
    fits = getattr(body, op)(_extent(body, a), _extent(body, b))
    body.stems[fits.name] = "fits"
    return fits


def _extent(body: Body, d: Size) -> Var | int:
    """A size as an operand; the same one where it was needed before."""
    if isinstance(d, int | Var):
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

    written = _SIZE.sub(size, text).replace("torch.sym_", "")  # torch 2.15 writes torch.sym_max
    tree = ast.parse(written, mode="eval").body
    parts = tree.values if isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And) else [tree]
    for part in parts:
        shown = re.sub(r"\bd\d+\b", lambda m: str(found[m[0]]), ast.unparse(part))
        before = len(body.statements)
        fits = _truth(part, found, body)
        if fits is None:
            raise _unwritable(text)
        if isinstance(fits, bool):
            del body.statements[before:]
        _assert(body, fits, shown)


def _truth(tree: ast.expr, names: Mapping[str, Dim], body: Body) -> Var | bool | None:
    """Whether a condition holds; None where it cannot be written."""
    match tree:
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARED:
            a, b = (_size(t, names, body) for t in (left, right))
            return None if a is None or b is None else _compared(body, _COMPARED[type(op)], a, b)
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            fits = _truth(inner, names, body)
            return body.logical_not(fits) if isinstance(fits, Var) else fits and None
        case ast.BoolOp(op=op, values=values):
            found = [_truth(v, names, body) for v in values]
            if None in found:
                return None
            absorbing = isinstance(op, ast.Or)
            if absorbing in found:
                return absorbing
            join = body.logical_or if absorbing else body.logical_and
            rest = [v for v in found if isinstance(v, Var)]
            return functools.reduce(join, rest) if rest else not absorbing
    return None


def _size(tree: ast.expr, names: Mapping[str, Dim], body: Body) -> Size | None:
    """A size, or a number that is computed from sizes; None where it cannot be written."""
    match tree:
        case ast.Constant(value=int(value)):
            return value
        case ast.Name(id=name) if name in names:
            return names[name]
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return _size(ast.BinOp(ast.Constant(-1), ast.Mult(), inner), names, body)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            a, b = (_size(t, names, body) for t in (left, right))
            combined, ours = _ARITHMETIC[type(op)]
        case ast.Call(func=ast.Name(id="max" | "min" as name), args=[left, right]):
            a, b = (_size(t, names, body) for t in (left, right))
            if isinstance(a, int) and isinstance(b, int):
                return max(a, b) if name == "max" else min(a, b)
            combined, ours = None, f"{name}imum"
        case _:
            return None
    if a is None or b is None:
        return None
    if combined is None or isinstance(a, Var) or isinstance(b, Var):
        return getattr(body, ours)(_extent(body, a), _extent(body, b))
    return combined(a, b)


def _unwritable(text: str) -> InputError:
    return InputError(
        f"the model was exported for sizes with {text}, which cannot be written as an assert",
        hint='name the sizes: torch.export.Dim("batch") in place of Dim.AUTO',
    )
