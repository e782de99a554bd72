"""Syntax trees to closures: what can be decided beforehand is, so that one evaluation is quick.

A closure takes an `Evaluation` and gives a value. Before it computes, it sets `Evaluation.at`
to its part of the tree, which errors without a column are about (`errors.located`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from opstep.runtime.expressions import operators
from opstep.runtime.expressions.arguments import bind
from opstep.runtime.expressions.errors import ExpressionError, NoTensor
from opstep.runtime.expressions.indexing import compile_index
from opstep.runtime.expressions.registry import FUNCTIONS
from opstep.runtime.expressions.tree import (
    AtRank,
    AtStep,
    Binary,
    Call,
    Compare,
    Field,
    Index,
    Items,
    Name,
    Number,
    Text,
    Tree,
    Unary,
)
from opstep.runtime.expressions.values import Evaluation, ValueTable, elements, unwrap_scalar
from opstep.runtime.ir.diagnostics import did_you_mean

Code = Callable[[Evaluation], Any]

# What statistics tell of a large tensor, so that no elements are needed.
_FROM_STATISTICS = {("max", "abs"): "absmax", ("all", "finite"): "finite"}
_FROM_STATISTICS |= {(outer, "nan"): "nans" for outer in ("count", "sum")} | {("any", "nan"): "nan"}
_FROM_STATISTICS |= {(outer, "inf"): "infs" for outer in ("count", "sum")} | {("any", "inf"): "inf"}
_OUTER = {outer for outer, _ in _FROM_STATISTICS}


def compile_tree(tree: Tree) -> Code:
    """What evaluates a tree. Raises `ExpressionError`."""
    return _COMPILERS[type(tree)](tree)


def _constant(tree: Number | Text) -> Code:
    value = tree.value
    return lambda env: value


def _name(tree: Name) -> Code:
    name, at = tree.text, tree.at

    def run(env: Evaluation) -> Any:
        found = env.scope.lookup(name)
        if found is None:
            raise _unknown(env, name, at)
        return found

    return run


def _unknown(env: Evaluation, name: str, at: int) -> ExpressionError:
    names = env.scope.names()
    owner, _, field = name.rpartition(".")
    if field in FUNCTIONS and owner in names:
        hint = f"write {field}({owner})"
    elif name in FUNCTIONS:
        hint = f"it is a function: {FUNCTIONS[name].signature}"
    else:
        hint = env.scope.hint(name) or did_you_mean(name, names)
    return NoTensor(f"there is no {name[:80]} here", at, hint)


def _items(tree: Items) -> Code:
    parts = [compile_tree(item) for item in tree.items]

    def run(env: Evaluation) -> Any:
        values = [elements(env, part(env)) for part in parts]
        env.at = tree
        if not values:
            return np.empty(0, np.float64)
        if len({np.shape(v) for v in values}) > 1:
            raise ExpressionError("the rows of a list are of different shapes")
        env.charge(sum(np.size(v) for v in values) * 8)
        return np.stack([_item(v) for v in values])

    return run


def _item(value: Any) -> Any:
    """What is written in a list is a bool, an i64 or an f64."""
    if isinstance(value, bool):
        return np.bool_(value)
    if isinstance(value, int):
        return np.int64(value) if -(2**63) <= value < 2**63 else np.float64(value)
    return np.float64(value) if isinstance(value, float) else value


def _unary(tree: Unary) -> Code:
    apply, operand = operators.UNARY[tree.sign], compile_tree(tree.operand)
    if isinstance(tree.operand, Number) and tree.sign != "not":
        value = tree.operand.value
        constant = -value if tree.sign == "-" else value
        return lambda env: constant

    def run(env: Evaluation) -> Any:
        value = operand(env)
        env.at = tree
        return apply(env, value)

    return run


def _binary(tree: Binary) -> Code:
    if tree.sign in ("and", "or"):
        return _short_circuit(tree)
    return _applied(operators.BINARY[tree.sign], tree, tree.left, tree.right)


def _applied(apply: operators.Operator, tree: Tree, first: Tree, second: Tree) -> Code:
    left, right = compile_tree(first), compile_tree(second)

    def run(env: Evaluation) -> Any:
        a, b = left(env), right(env)
        env.at = tree
        return apply(env, a, b)

    return run


def _short_circuit(tree: Binary) -> Code:
    """``and`` and ``or``: the right side is looked at only where the left one does not decide."""
    left, right, ends = compile_tree(tree.left), compile_tree(tree.right), tree.sign == "or"
    apply = operators.BINARY[tree.sign]

    def run(env: Evaluation) -> Any:
        a = left(env)
        if isinstance(a, bool | np.bool_) and bool(a) is ends:
            return ends
        b = right(env)
        env.at = tree
        return apply(env, a, b)

    return run


def _compare(tree: Compare) -> Code:
    tests = [operators.COMPARE[sign] for sign in tree.signs]
    if len(tests) == 1:
        return _applied(tests[0], tree, *tree.operands)
    codes = [compile_tree(o) for o in tree.operands]

    def run(env: Evaluation) -> Any:
        values = [code(env) for code in codes]
        env.at = tree
        found: Any = True
        for k, test in enumerate(tests):
            found = operators.both(env, found, test(env, values[k], values[k + 1]))
        return found

    return run


def _call(tree: Call) -> Code:
    found, at = FUNCTIONS.get(tree.name), tree.at
    if found is None:
        hint = did_you_mean(tree.name, FUNCTIONS)
        raise ExpressionError(f"there is no function {tree.name[:80]}", at, hint)
    if tree.name in _OUTER and len(tree.arguments) == 1 and not tree.keywords:
        inner = tree.arguments[0]
        fused = _FROM_STATISTICS.get((tree.name, inner.name)) if isinstance(inner, Call) else None
        if fused and isinstance(inner, Call) and len(inner.arguments) == 1 and not inner.keywords:
            return _call(Call(fused, inner.arguments, (), at))
    call, codes = found.call, bind(found, tree, compile_tree)

    def run(env: Evaluation) -> Any:
        arguments = [code(env) for code in codes]
        env.at = tree
        return unwrap_scalar(call(env, *arguments))

    return run


def _field(tree: Field) -> Code:
    operand, name, at = compile_tree(tree.operand), tree.name, tree.at

    def run(env: Evaluation) -> Any:
        value = operand(env)
        if not isinstance(value, ValueTable):
            hint = f"write {name}(…)" if name in FUNCTIONS else ""
            raise ExpressionError(f"only tables have fields, such as .{name[:40]}", at, hint)
        if name not in value.fields:
            listed = ", ".join(value.fields)
            raise ExpressionError(f"{value.kind} has no field {name[:40]}", at, f"it has {listed}")
        return value.fields[name]

    return run


def _at_step(tree: AtStep) -> Code:
    operand, at = compile_tree(tree.operand), tree.at

    def run(env: Evaluation) -> Any:
        here = env.scope
        if tree.run is None:
            there = here.relative(tree.steps) if tree.steps else here
            missing = "there is no such step"
            if there is None and tree.steps == -1:
                missing = "there is no step before this one"
        else:
            there, missing = here.run(tree.run, tree.step), f"there is no run {tree.run[:40]}"
        if there is None:
            raise ExpressionError(missing, at)
        return env.within(there, operand)

    return run


def _at_rank(tree: AtRank) -> Code:
    operand, rank = compile_tree(tree.operand), tree.rank

    def run(env: Evaluation) -> Any:
        env.at = tree
        return env.within(env.scope.on_rank(rank), operand)

    return run


_COMPILERS: dict[type, Callable[[Any], Code]] = {
    Number: _constant,
    Text: _constant,
    Name: _name,
    Items: _items,
    Unary: _unary,
    Binary: _binary,
    Compare: _compare,
    Call: _call,
    Index: lambda tree: compile_index(tree, compile_tree),
    Field: _field,
    AtStep: _at_step,
    AtRank: _at_rank,
}
