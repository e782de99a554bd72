"""What goes wrong with an expression, and how much one may ask for."""

from __future__ import annotations

from typing import NamedTuple

UNPLACED = -1  # the column of an error before the expression around it says where it stands


class ExpressionError(Exception):
    """What is wrong with an expression. `column`: offset of a character in its text, from 0."""

    def __init__(self, message: str, column: int = UNPLACED, hint: str = ""):
        super().__init__(message)
        self.message = message
        self.column = column
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def pointing(self, text: str) -> str:
        """The expression, a caret below the place, and the message."""
        if not 0 <= self.column <= len(text) or "\n" in text:
            return str(self)
        start = max(self.column - 60, 0)
        lead = "…" if start else ""
        shown = lead + text[start : self.column + 40]
        lines = [shown, " " * (len(lead) + self.column - start) + "^", self.message]
        return "\n".join([*lines, f"hint: {self.hint}"] if self.hint else lines)


class NoTensor(ExpressionError):
    """A name means nothing here."""


# What NumPy raises over operands that do not fit.
RAISED = (ArithmeticError, IndexError, MemoryError, TypeError, ValueError)


def located(error: Exception, at: int, what: str = "") -> ExpressionError:
    """An error with its column, once."""
    if isinstance(error, ExpressionError):
        if error.column < 0:
            error.column = at
        return error
    if isinstance(error, MemoryError):
        return ExpressionError("there is not enough memory for it", at)
    line = (str(error).splitlines() or [type(error).__name__])[0][:200]
    return ExpressionError(f"{what}: {line}" if what else line, at)


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
