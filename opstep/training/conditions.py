"""Conditions on the values of a step of training: ``absmax(d_*) > 1e3``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from opstep.editors.views import HostTensor
from opstep.runtime.expressions import Expression, ExpressionError, Nowhere, parse
from opstep.runtime.expressions.tree import Name
from opstep.runtime.ir.diagnostics import Diagnostic, did_you_mean, names_listed
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.graph import Source, Span
from opstep.training.watched import FIGURES, VALUE, StepValue, Wanted

_NAME = r"(?:`[^`]+`|[A-Za-z_][\w.]*)"
_WORD = re.compile(r"""'[^']*'|"[^"]*"|`[^`]*`|[\w.*?]+""")
_MAGNITUDE = re.compile(rf"\bmax\(\s*abs\(\s*({_NAME})\s*\)\s*\)")
_FIGURE = re.compile(rf"\b({'|'.join(FIGURES)})\(\s*({_NAME})\s*\)")
HINT = "a product has spaces around its *"


class Condition:
    """One expression, read: `pattern` stands for each of the names that it matches."""

    def __init__(self, text: str):
        self.text = text
        self.pattern, self._placeholder, self._at = "", "", 0
        masked = _WORD.sub(self._mask, text)
        self.figures: dict[str, tuple[str, str, str]] = {}  # by what stands for it
        try:
            parse(masked)
            masked = self._with_figures(masked)
            self.expression = parse(masked)
            self.left = None if self.figures else _left(masked)
        except ExpressionError as error:
            raise self._wrong(error) from None

    def _mask(self, found: re.Match) -> str:
        word = found[0]
        if not _is_pattern(word, self.text[: found.start()], self.text[found.end() :]):
            return word
        if self.pattern and word != self.pattern:
            told = f"{word} is a second pattern beside {self.pattern}"
            raise self.error(told, found.start(), len(word), HINT)
        if not self.pattern:
            self.pattern, self._at = word, found.start()
        self._placeholder = re.sub(r"[*?]", "_", word)
        return self._placeholder

    def _with_figures(self, masked: str) -> str:
        """The text with a name of the same length in place of each figure."""

        def note(found: re.Match, figure: str, name: str) -> str:
            stem = f"f{len(self.figures)}"
            key = stem + "_" * (len(found[0]) - len(stem))
            shown = self.text[found.start() : found.end()]
            self.figures[key] = (figure, name.strip("`"), shown)
            return key

        masked = _MAGNITUDE.sub(lambda m: note(m, "absmax", m[1]), masked)
        return _FIGURE.sub(lambda m: note(m, m[1], m[2]), masked)

    # --- what it speaks of ---

    def targets(self, values: Mapping[str, StepValue], tensors: Mapping[str, Any]) -> list[str]:
        """The names that it is asked of; [""] where it has no pattern. Raises `InputError` where it
        names what is not there.
        """
        found = [""]
        if self.pattern:
            every = [n for n, v in values.items() if v.type.dtype.is_float and n != "loss"]
            every += [n for n, t in tensors.items() if n not in values and t.dtype.is_float]
            every = list(dict.fromkeys(every))
            found = [n for n in every if fnmatchcase(n, self.pattern)]
            if not found:
                stem = re.sub(r"[*?]", "", self.pattern)
                near = did_you_mean(stem, every) or f"there are {names_listed(every)}"
                hint = near if re.fullmatch(r"\*?[\w.]+\*?", self.pattern) else HINT
                told = f"no value of the step is called {self.pattern}"
                raise self.error(told, self._at, len(self.pattern), hint)
        for target in found:
            for _, wanted in self.wanted(target, values, tensors):
                is_number = wanted.figure != VALUE or wanted.value.type.dtype.is_float
                if isinstance(self.expression.tree, Name) and is_number:
                    told = f"{self.text} is a number, and a condition says yes or no"
                    raise self.error(told, 0, len(self.text), f"such as {self.text} > 1e3")
        return found

    def wanted(
        self, target: str, values: Mapping[str, StepValue], tensors: Mapping[str, Any]
    ) -> Iterator[tuple[str, Wanted]]:
        """By the name in the expression what the step has to give, of a target."""
        for name in self.expression.names:
            figure, of, _ = self.figures.get(name, (VALUE, name, name))
            actual = target if of == self._placeholder and target else of
            value = values.get(actual)
            if value is None:
                if actual not in tensors:
                    every = [*values, *tensors]
                    hint = did_you_mean(actual, every) or f"there are {names_listed(every)}"
                    raise self.error(f"the step has no {actual}", self._column(of), len(of), hint)
            elif figure != VALUE or not value.type.rank:
                yield name, Wanted(figure, value)
            elif actual not in tensors:
                hint = f"such as absmax({actual}); there are {', '.join(FIGURES)}"
                told = f"{actual} is a {value.type}; a condition takes figures of it"
                raise self.error(told, self._column(of), len(of), hint)

    def _column(self, name: str) -> int:
        masked = _WORD.sub(self._mask, self.text)
        found = re.search(rf"(?<![\w.]){re.escape(name)}(?![\w.])", masked)
        return found.start() if found else 0

    # --- its truth ---

    def holds(self, scope: Figures) -> bool:
        try:
            return self.expression.holds(scope)
        except ExpressionError as error:
            raise self._wrong(error) from None

    def told(self, target: str, scope: Figures) -> dict[str, float]:
        """The figures that it goes by, as they are written in it."""
        try:
            return self._told(target, scope)
        except ExpressionError as error:
            raise self._wrong(error) from None

    def _told(self, target: str, scope: Figures) -> dict[str, float]:
        shown = {}
        for name in self.expression.names:
            figure = self.figures.get(name)
            number = scope.number(name)
            if number is not None:
                text = figure[2] if figure else name
                text = text.replace(self.pattern, target) if self.pattern else text
                shown[target if text == self._placeholder else text] = number
        if not shown and self.left is not None:
            left = self.left.evaluate(scope)
            value = np.asarray(left.array() if isinstance(left, HostTensor) else left)
            if value.size == 1:
                shown[self.text[: len(self.left.text)].strip()] = float(value.item())
        return shown

    def actual(self, name: str, target: str) -> tuple[str, str]:
        """The figure and the tensor that a name in the expression stands for."""
        figure, of, _ = self.figures.get(name, (VALUE, name, name))
        return figure, target if of == self._placeholder and target else of

    # --- errors ---

    def error(self, message: str, at: int, length: int, hint: str) -> InputError:
        source = Source(self.text, "condition")
        return InputError(Diagnostic("error", message, Span(at, at + length), source, hint))

    def _wrong(self, error: ExpressionError) -> InputError:
        if error.column < 0:
            return InputError(error.message, hint=error.hint)
        return self.error(error.message, error.column, 1, error.hint)


def _is_pattern(word: str, before: str, behind: str) -> bool:
    """Whether a word is a pattern, and its * is no product: that has spaces around it."""
    if word[0] in "'\"`" or word[0].isdigit() or "**" in word or not set(word) & {"*", "?"}:
        return False
    if word == "*":
        return before.rstrip()[-1:] in ("(", ",") and behind.lstrip()[:1] in (")", ",")
    product = word[0] == "*" and before[-1:] in (")", "]")
    return not (product or (word[-1] == "*" and behind[:1] == "("))


def _left(text: str) -> Expression | None:
    """What stands left of the first comparison, outside of brackets."""
    depth = 0
    for k, c in enumerate(text):
        depth += (c in "([") - (c in ")]")
        if not depth and c in "<>=!":
            return parse(text[:k])
    return None


class Figures(Nowhere):
    """What the names of a condition mean for one target: numbers, and arrays of named tensors."""

    def __init__(self, arrays: Mapping[str, np.ndarray]):
        self.arrays = arrays

    def lookup(self, name: str) -> Any:
        array = self.arrays.get(name)
        return None if array is None else HostTensor(np.asarray(array))

    def names(self) -> list[str]:
        return list(self.arrays)

    def number(self, name: str) -> float | None:
        array = self.arrays.get(name)
        return None if array is None or np.size(array) != 1 else float(np.asarray(array).item())


def computed(figure: str, array: np.ndarray) -> np.ndarray:
    """A figure of a named tensor that the step does not compute."""
    if figure == VALUE:
        return array
    scope = Figures({"x": array})
    return np.asarray(_FUNCTIONS.setdefault(figure, parse(f"{figure}(x)")).evaluate(scope))


_FUNCTIONS: dict[str, Expression] = {}
