"""An expression that was read, and its evaluation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from opstep.runtime.expressions import functions
from opstep.runtime.expressions.compiler import compile_tree
from opstep.runtime.expressions.errors import LIMITS, RAISED, ExpressionError, Limits, located
from opstep.runtime.expressions.operators import truth
from opstep.runtime.expressions.parser import parse_tree
from opstep.runtime.expressions.protocols import Handle, Scope
from opstep.runtime.expressions.tree import Call, Compare, Index, Name, Tree, parts
from opstep.runtime.expressions.values import Evaluation, ValueTable
from opstep.runtime.ir.diagnostics import OpstepError

Value = Handle | np.ndarray | np.generic | bool | int | float | str | tuple | ValueTable

_NEVER_WARNS = (Name, Index, Compare)

assert functions.FUNCTIONS  # their modules have registered them


class Expression:
    """Can be evaluated any number of times, in any scope. `names` are the tensors it speaks of."""

    __slots__ = ("_may_warn", "_run", "names", "text", "tree")

    def __init__(self, text: str):
        self.text = text
        try:
            self.tree = parse_tree(text)
            self._run = compile_tree(self.tree)
        except ExpressionError as error:
            error.of(text)
            raise
        found = list(_walk(self.tree))
        self.names = tuple(dict.fromkeys(t.text for t in found if isinstance(t, Name)))
        # what may divide by 0 or overflow; NumPy is not to warn of it
        self._may_warn = any(not isinstance(t, _NEVER_WARNS) and parts(t) for t in found)

    def column_of(self, name: str) -> int:
        """Where one of its names stands first."""
        return next(t.at for t in _walk(self.tree) if isinstance(t, Name) and t.text == name)

    def evaluate(self, scope: Scope, limits: Limits = LIMITS) -> Any:
        """Its `Value` in a scope. Raises `ExpressionError`."""
        value = self._evaluated(scope, limits, self._run)
        if isinstance(value, np.ndarray) and (value.base is not None or not value.flags.writeable):
            return value.copy()  # a view of memory that may be written to when the run goes on
        return value

    def holds(self, scope: Scope, limits: Limits = LIMITS) -> bool:
        """As a condition: whether any element is true, that is, not 0. Raises `ExpressionError`."""
        run = self._run
        return self._evaluated(scope, limits, lambda env: truth(env, run(env)))

    def _evaluated(self, scope: Scope, limits: Limits, run: Any) -> Any:
        env = Evaluation(scope, limits, self.tree)
        try:
            if not self._may_warn:
                return run(env)
            with np.errstate(all="ignore"):
                return run(env)
        except OpstepError as error:
            first = error.diagnostics[0]
            failed = ExpressionError(first.message, self._column_of_load(), first.hint)
            raise failed.of(self.text) from error
        except (ExpressionError, *RAISED) as error:
            raise located(error, env.at).of(self.text) from None

    def _column_of_load(self) -> int:
        for tree in _walk(self.tree):
            if isinstance(tree, Call) and tree.name == "load":
                return tree.at
        return self.tree.at

    def __repr__(self) -> str:
        return f"Expression({self.text!r})"


def parse(text: str) -> Expression:
    """Reads an expression. Raises `ExpressionError`."""
    return Expression(text)


def _walk(tree: Tree) -> Iterator[Tree]:
    waiting = [tree]
    while waiting:
        found = waiting.pop()
        yield found
        if isinstance(found, Call) and found.name == "cast":  # its second one is an element type
            waiting += reversed(found.arguments[:1])
        else:
            waiting += reversed(parts(found))
