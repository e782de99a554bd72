"""What importers found no counterpart for, at the lines of Python that it is from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, Self

from opstep.runtime.ir.diagnostics import Diagnostic
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.graph import Source, Span


class Family(NamedTuple):
    """Why ops have no counterpart, and what to do about it."""

    reason: str
    hint: str = ""


class Missing(NamedTuple):
    """An op that could not be translated, and where it is called."""

    op: str  # "aten.nonzero.default", "eigh"
    reason: str
    file: str
    line: int  # 0 where it is not known
    hint: str = ""


class ImportFailed(InputError):
    """Some ops have no counterpart: one message for each op and reason, at its first place;
    `missing` lists every place.
    """

    def __init__(self, missing: Sequence[Missing]):
        self.missing = tuple(missing)
        groups: dict[tuple[str, str], list[Missing]] = {}
        for m in missing:
            groups.setdefault((m.op, m.reason), []).append(m)
        super().__init__(self._diagnostic(found) for found in groups.values())

    def hinted(self, hint: str) -> Self:
        """With what to do about it, behind all messages."""
        *others, last = self.diagnostics
        self.diagnostics = (*others, replace(last, hint=last.hint or hint))
        return self

    def hint(self, missing: Missing) -> str:
        """What to do about one."""
        return missing.hint

    def _diagnostic(self, found: Sequence[Missing]) -> Diagnostic:
        """Of one op and reason."""
        first = next((m for m in found if m.line), found[0])
        source, span = source_line(first.file, first.line)
        times = f" ({len(found)} times)" if len(found) > 1 else ""
        message = f"{first.op} cannot be imported: {first.reason}{times}"
        if first.line and source is None:  # the file is on the machine that exported the model
            message = f"{first.file}:{first.line}: {message}"
        return Diagnostic("error", message, span, source, self.hint(first))


def source_line(file: str, line: int) -> tuple[Source | None, Span | None]:
    """A line of a Python file, to be shown; nothing where it cannot be read."""
    try:
        source = Source(Path(file).read_text("utf-8", "replace"), file)
        text = source.line(line)
    except (OSError, IndexError, ValueError):
        return None, None
    start = sum(len(t) + 1 for t in source.text.split("\n")[: line - 1])
    return source, Span(start + len(text) - len(text.lstrip()), start + len(text.rstrip()))
