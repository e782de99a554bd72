"""What goes wrong with an expression, and how much one may ask for."""

from __future__ import annotations

from typing import NamedTuple

from opstep.runtime.expressions.tree import Call, Tree
from opstep.runtime.ir.diagnostics import Diagnostic
from opstep.runtime.ir.graph import Source, Span

UNPLACED = -1  # the column of an error before the expression around it says where it stands


class ExpressionError(Exception):
    """What is wrong with an expression: `text`, once it is known which; `column`: offset of a
    character in it, from 0.
    """

    def __init__(self, message: str, column: int = UNPLACED, hint: str = ""):
        super().__init__(message)
        self.message = message
        self.column = column
        self.hint = hint
        self.text = ""

    def of(self, text: str) -> ExpressionError:
        """Says which expression it is about; of one inside another, the inner one said it."""
        self.text = self.text or text
        return self

    def __str__(self) -> str:
        """In one line; an error at the beginning needs no column."""
        where = f"column {self.column + 1}: " if self.text and self.column > 0 else ""
        return f"{where}{self.message} ({self.hint})" if self.hint else f"{where}{self.message}"

    @property
    def diagnostic(self) -> Diagnostic:
        """As messages about programs are: the expression, a caret below the place, the hint."""
        if not self.text or self.column < 0:
            return Diagnostic("error", self.message, hint=self.hint)
        span, source = Span(self.column, self.column + 1), Source(self.text, "expression")
        return Diagnostic("error", self.message, span, source, self.hint)


class NoTensor(ExpressionError):
    """A name means nothing here."""


# What NumPy raises over operands that do not fit.
RAISED = (ArithmeticError, IndexError, MemoryError, TypeError, ValueError)


def located(error: Exception, tree: Tree) -> ExpressionError:
    """An error of a part of the tree, with a column."""
    if isinstance(error, ExpressionError):
        if error.column < 0:
            error.column = tree.at
        return error
    if isinstance(error, MemoryError):
        return ExpressionError("there is not enough memory for it", tree.at)
    line = (str(error).splitlines() or [type(error).__name__])[0][:200]
    called = f"{tree.name}: " if isinstance(tree, Call) else ""
    return ExpressionError(called + line, tree.at)


class Limits(NamedTuple):
    """How much one evaluation may use. `bytes`: of all that is copied from tensors or computed;
    `seconds`: looked at before each operation; `work`: multiplications of a product of matrices.
    """

    bytes: int = 1 << 30
    seconds: float = 5.0
    work: int = 1 << 34


TEXT_MOST = 10_000  # characters of an expression
HEIGHT_MOST = 100  # operations inside each other
LIMITS = Limits()
