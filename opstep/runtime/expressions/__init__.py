"""Expressions over tensors: what is typed into a watch, a condition, a log message.

    expression = parse("max(abs(x)) > 1e4")     # raises ExpressionError: message, column, hint
    expression.evaluate(scope)                  # a Value; any number of times, in microseconds
    expression.holds(scope)                     # as a condition: whether any element is true
    expression.names                            # ("x",): the tensors that it speaks of

An expression is read once and compiled to closures; nothing of it is ever given to Python. It has
no side effects. It reads files only through `Scope.load`.

What it is evaluated in (`protocols`): a `Scope` has ``lookup(name) -> Handle | None``, ``names()``,
``relative(steps) -> Scope | None`` for ``prev(x)`` and ``x@-1``, ``changed(changes) -> Scope`` for
``was(x)``, ``run(key, step) -> Scope | None`` for ``x@"3f2a:12"``, and ``load(path)``. A `Handle`
has ``type``, ``array()``, ``part(index)`` with ints and slices, and ``statistics()``. Elements are
asked for only where they are needed: ``x[0, :3]`` takes a part, ``mean(x)``, ``nan(x)``,
``max(abs(x))`` and ``stats(x)`` of a large tensor its statistics.

A `Value` is one of

    Handle         the expression is a name: nothing was copied
    np.ndarray     of a dtype of the language; rank 1 or more
    np.generic     one element, with its dtype: max(x), x[0, 0]
    bool int float a number that has no dtype: 3, 2 * 0.5, size(x)
    str            dtype(x)
    tuple          of ints: shape(x)
    ValueTable     stats, hist, topk, diff: `columns`, `rows`, `fields` by name, `text` in a line;
                   stats(x).std and diff(a, b).max_abs are expressions, too

`opstep.runtime.expressions.text` writes values:

    value_text(value) -> str                    one line, for any Value
    tensor_text(type, statistics) -> str        f32[8, 128]  mean 0.01  std 1.2  min -3.1  max 4.2
    Rows(value)                                 children for a variables view, a page at a time:
                                                `.count`, `.page(start, count)`, `.ranges()`

Values are set (`assignment`) by

    assign(scope, "x[0, :3]", "[1, 2, nan]") -> Assignment("x", array, part)
                                                the name, and its whole new value in its type;
                                                the value may be any expression: load("x.npy")
    as_tensor(value, type) -> np.ndarray        a Value as a tensor of this type: numbers are spread
                                                over it, what cannot be held exactly enough (300 as
                                                u8, 0.5 as i32, another shape) raises

`FUNCTIONS` (name -> `Function`: `signature`, `doc`, `family`) is the registry; ``complete(text,
column, names)`` gives completions. Limits: see `Limits`; every operation is bounded by its size
before it runs, time is looked at between operations.

Errors of evaluation are ExpressionError, too; nothing else leaves this package but what a scope or
a handle raises themselves: `OpstepError` (a device that fails; a file that is refused).
"""

from __future__ import annotations

from opstep.runtime.expressions.assignment import as_tensor, assign
from opstep.runtime.expressions.completion import Completion, complete
from opstep.runtime.expressions.errors import LIMITS, ExpressionError, Limits
from opstep.runtime.expressions.expression import Expression, Value, parse
from opstep.runtime.expressions.functions import FUNCTIONS, Function, by_family
from opstep.runtime.expressions.protocols import Handle, Nowhere, Scope
from opstep.runtime.expressions.values import ValueTable

__all__ = [
    "FUNCTIONS",
    "LIMITS",
    "Completion",
    "Expression",
    "ExpressionError",
    "Function",
    "Handle",
    "Limits",
    "Nowhere",
    "Scope",
    "Value",
    "ValueTable",
    "as_tensor",
    "assign",
    "by_family",
    "complete",
    "parse",
]  # fmt: skip
