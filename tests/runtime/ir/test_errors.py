"""Programs that are wrong. The comments in them say what is reported, and where.

``# error: …`` holds a part of a message about that line, ``# hint: …`` a part of its hint and
``# note: …`` of a note that points there. All errors of a file are expected, and no others.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from small_ops import SMALL_OPS

from opstep.runtime.ir.diagnostics import Diagnostic, Note
from opstep.runtime.ir.graph import Source
from opstep.runtime.ir.parser import parse, parse_with_diagnostics
from opstep.runtime.ir.verify import verify_with_diagnostics

FILES = sorted((Path(__file__).parent / "errors").glob("*.opg"))
LIBRARY = Path(__file__).parent / "library.opg"
_MARK = re.compile(r"# (error|hint|note): (.*?)\s*(?=# (?:error|hint|note): |$)")


def diagnose(text: str, path: str) -> list[Diagnostic]:
    """Errors of syntax; where there are none, those that the verifier finds."""
    module, diagnostics = parse_with_diagnostics(text, path)
    if diagnostics:
        return diagnostics
    library = parse(LIBRARY.read_text(), LIBRARY.name)
    return verify_with_diagnostics(module, SMALL_OPS, [library])[1]


def marks(text: str, kind: str) -> list[tuple[int, str]]:
    """The marks of a kind, with their lines."""
    return [
        (number, part)
        for number, line in enumerate(text.split("\n"), 1)
        for found, part in _MARK.findall(line)
        if found == kind
    ]


def unmatched(wanted: list[tuple[int, str]], found: list[tuple[int, str]]) -> list[str]:
    """What is expected and does not come, and what comes unexpected."""
    rest = list(found)
    missing = []
    for line, part in wanted:
        match = next((f for f in rest if f[0] == line and part in f[1]), None)
        if match is None:
            missing.append(f"missing, line {line}: {part}")
        else:
            rest.remove(match)
    return missing + [f"unexpected, line {line}: {message}" for line, message in rest]


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_all_errors_of_a_file_are_reported_where_they_are(path: Path) -> None:
    text = path.read_text()
    source = Source(text, path.name)
    diagnostics = diagnose(text, path.name)

    errors = [(source.locate(d.span.start)[0], d.message) for d in diagnostics if d.span]
    assert not unmatched(marks(text, "error"), errors)

    hints = [(source.locate(d.span.start)[0], d.hint) for d in diagnostics if d.span]
    wrong = [m for m in unmatched(marks(text, "hint"), hints) if m.startswith("missing")]
    assert not wrong

    notes = [Note(*n) for d in diagnostics for n in d.notes]
    placed = [(source.locate(n.span.start)[0], n.message) for n in notes]
    wrong = [m for m in unmatched(marks(text, "note"), placed) if m.startswith("missing")]
    assert not wrong


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_messages_are_in_order_and_each_is_said_once(path: Path) -> None:
    diagnostics = diagnose(path.read_text(), path.name)
    starts = [d.span.start for d in diagnostics if d.span]
    assert starts == sorted(starts)
    assert max(Counter(diagnostics).values()) == 1
    assert all(d.message and not d.message.endswith(".") for d in diagnostics)
