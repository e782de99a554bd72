"""What cannot be imported, and why."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from opstep.runtime.ir.diagnostics import Diagnostic
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.graph import Source, Span
from opstep.runtime.ir.wording import Argument, Wording

_NOISE = re.compile(
    r"\s*(The error above occurred when calling|For more information|\(?Size-like symbols|"
    r"Caused by:|consider using data-dependent|Please check the warnings).*",
    re.DOTALL,
)
FALLBACK = Wording(Argument("fallback", "torch"), " lets PyTorch run it")
OF_DATA = "a size depends on data"
# Ops that draw numbers: those of a model in training mode, mostly.
RANDOM = ("dropout", "rand", "bernoulli", "normal", "multinomial", "rrelu", "exponential")


def cause(error: BaseException, most: int = 300) -> str:
    """What a message of PyTorch's says, without its advice, on one line."""
    text = _NOISE.sub("", str(error)).strip() or type(error).__name__
    text = " ".join(text.split("\n\n")[0].split())
    return text if len(text) <= most else text[: most - 1] + "…"


class Untranslatable(Exception):
    """Raised by a rule or a conversion: this op, with these arguments, has no counterpart."""


class Disagreement(Untranslatable):
    """Our result has another shape than PyTorch says. One of the two is wrong, so PyTorch's
    definition by other ops is not tried (2.11 has a wrong shape, and definition, of LSTM).
    """


class Missing(NamedTuple):
    """An ATen op that could not be translated, and where the model calls it."""

    op: str  # "aten.nonzero.default"
    reason: str
    file: str
    line: int  # 0 where it is not known


class ImportFailed(InputError):
    """Some ops have no counterpart: one message for each op and reason, at its first place;
    `missing` lists every place.
    """

    def __init__(self, missing: Sequence[Missing]):
        self.missing = tuple(missing)
        groups: dict[tuple[str, str], list[Missing]] = {}
        for m in missing:
            groups.setdefault((m.op, m.reason), []).append(m)
        super().__init__(_diagnostic(found) for found in groups.values())

    def hinted(self, hint: str) -> ImportFailed:
        """With what to do about it, behind all messages."""
        *others, last = self.diagnostics
        self.diagnostics = (*others, replace(last, hint=last.hint or hint))
        return self


def _diagnostic(found: Sequence[Missing]) -> Diagnostic:
    """Of one op and reason."""
    first = next((m for m in found if m.line), found[0])
    source, span = source_line(first.file, first.line)
    times = f" ({len(found)} times)" if len(found) > 1 else ""
    is_random = any(word in first.op for word in RANDOM)
    hint = "in training mode models draw numbers: call model.eval() first" if is_random else ""
    if first.reason == OF_DATA:
        hint = "keep the shape: torch.where(mask, x, 0) in place of x[mask]"
    message = f"{first.op} cannot be imported: {first.reason}{times}"
    if first.line and source is None:  # the file is on the machine that exported the model
        message = f"{first.file}:{first.line}: {message}"
    return Diagnostic("error", message, span, source, hint)


def source_line(file: str, line: int) -> tuple[Source | None, Span | None]:
    """A line of a Python file, to be shown; nothing where it cannot be read."""
    try:
        source = Source(Path(file).read_text("utf-8", "replace"), file)
        text = source.line(line)
    except (OSError, IndexError, ValueError):
        return None, None
    start = sum(len(t) + 1 for t in source.text.split("\n")[: line - 1])
    return source, Span(start + len(text) - len(text.lstrip()), start + len(text.rstrip()))
