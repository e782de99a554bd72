"""What a call's arguments are made of before the function sees them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from opstep.runtime.expressions.errors import ExpressionError
from opstep.runtime.expressions.registry import FUNCTIONS, Deferred, Function
from opstep.runtime.expressions.tree import (
    AtRank,
    AtStep,
    Binary,
    Call,
    Compare,
    Name,
    Text,
    Tree,
    Unary,
)
from opstep.runtime.expressions.values import NUMBERS, Evaluation, as_integer, elements
from opstep.runtime.ir.diagnostics import did_you_mean
from opstep.runtime.ir.types import DTYPES

Code = Callable[[Evaluation], Any]


def bind(found: Function, tree: Call, compiled: Callable[[Tree], Code]) -> list[Code]:
    """One closure for each parameter, in their order. Raises `ExpressionError`."""
    arguments = list(tree.arguments)
    keywords = dict(tree.keywords)
    codes: list[Code] = []
    for p in found.parameters:
        if p.kind is p.VAR_POSITIONAL:
            codes += [argument(found, p, one, compiled) for one in arguments]
            arguments.clear()
        elif arguments:
            if p.name in keywords:
                raise ExpressionError(f"{p.name} is given twice: {found.signature}", tree.at)
            codes.append(argument(found, p, arguments.pop(0), compiled))
        elif p.name in keywords:
            codes.append(argument(found, p, keywords.pop(p.name), compiled))
        elif p.default is inspect.Parameter.empty:
            raise ExpressionError(f"{found.name} needs {p.name}: {found.signature}", tree.at)
        else:
            codes.append(lambda env, value=p.default: value)
    if arguments:
        raise ExpressionError(f"too many arguments: {found.signature}", arguments[0].at)
    for key in keywords:
        hint = did_you_mean(key, [p.name for p in found.parameters])
        raise ExpressionError(
            f"{found.name} takes no {key[:40]}=: {found.signature}", tree.at, hint
        )
    return codes


def argument(found: Function, p: inspect.Parameter, tree: Tree, compiled) -> Code:
    """A closure that gives what a parameter takes."""
    kind = str(p.annotation).removesuffix(" | None")
    if kind == "Dtype":
        return _element_type(tree)
    if kind == "Mask":
        tree = as_mask(tree)
    code = compiled(tree)
    if kind in ("Lazy", "Mask"):
        return code
    if kind == "Deferred":
        deferred = Deferred(code, tree.text if isinstance(tree, Name) else "")
        return lambda env: deferred
    convert = _CONVERTERS[kind]

    def run(env: Evaluation) -> Any:
        value = code(env)
        env.at = tree
        return convert(env, value, p.name)

    return run


def as_mask(tree: Tree) -> Tree:
    """Predicates as what says the same of each element: ``where(nan(x) and not inf(y))``."""
    if isinstance(tree, AtStep | AtRank) or (isinstance(tree, Unary) and tree.sign == "not"):
        return tree._replace(operand=as_mask(tree.operand))
    if isinstance(tree, Binary) and tree.sign in ("and", "or"):
        return tree._replace(left=as_mask(tree.left), right=as_mask(tree.right))
    if isinstance(tree, Compare):
        return tree._replace(operands=tuple(map(as_mask, tree.operands)))
    found = FUNCTIONS.get(tree.name) if isinstance(tree, Call) else None
    if found is not None and found.masked and isinstance(tree, Call):
        return tree._replace(name=found.masked)
    return tree


def _element_type(tree: Tree) -> Code:
    name = tree.text if isinstance(tree, Name) else tree.value if isinstance(tree, Text) else ""
    if name not in DTYPES:
        hint = f"it is one of {', '.join(DTYPES)}"
        raise ExpressionError(f"{name[:40] or 'this'} is no element type", tree.at, hint)
    return lambda env: name


def _elements(env: Evaluation, value: Any, name: str) -> Any:
    return elements(env, value)


def _integer(env: Evaluation, value: Any, name: str) -> int:
    return as_integer(elements(env, value), name)


def _number(env: Evaluation, value: Any, name: str) -> float:
    value = elements(env, value)
    if isinstance(value, np.ndarray):
        raise ExpressionError(f"{name} is one number")
    return value if isinstance(value, NUMBERS) else value.item()


def _axes(env: Evaluation, value: Any, name: str) -> int | tuple[int, ...]:
    value = elements(env, value)
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "iu":
        return tuple(value.tolist())
    return as_integer(value, f"{name} is an integer, or a list of them: an axis")


def _string(env: Evaluation, value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise ExpressionError(f'{name} is a text in "double quotes"')
    return value


_CONVERTERS: dict[str, Callable[[Evaluation, Any, str], Any]] = {
    "Elements": _elements,
    "Integer": _integer,
    "Number": _number,
    "Axes": _axes,
    "String": _string,
}
