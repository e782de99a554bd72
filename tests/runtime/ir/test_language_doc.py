"""docs/language.md: its programs are right, in canonical form, and its tables true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import opstep.kernels  # noqa: F401 - registers the ops
from opstep.runtime.ir.graph import Source
from opstep.runtime.ir.lexer import KEYWORDS
from opstep.runtime.ir.parser import parse
from opstep.runtime.ir.printer import print_module
from opstep.runtime.ir.types import DTYPES, promote
from opstep.runtime.ir.verify import verify_with_diagnostics

TEXT = (Path(__file__).parents[3] / "docs" / "language.md").read_text()
PROGRAMS = re.findall(r"```opg\n(.*?)```", TEXT, re.DOTALL)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.split("\n")[0])
def test_programs(program: str) -> None:
    module = parse(program, "language.md")
    assert print_module(module) == program
    _, diagnostics = verify_with_diagnostics(module)
    source = Source(program)
    found = [(source.locate(d.span.start)[0], d.message) for d in diagnostics if d.span]
    wanted = [
        (number, line.split("# error: ")[1])
        for number, line in enumerate(program.split("\n"), 1)
        if "# error: " in line
    ]
    assert found == wanted


def test_the_table_of_promotion() -> None:
    lines = [line.strip("|").split("|") for line in TEXT.split("\n") if line.startswith("|")]
    rows = [[cell.strip(" *") for cell in line] for line in lines]
    head = next(row for row in rows if row[1:3] == ["bool", "u8"])
    table = rows[rows.index(head) + 2 :][:6]
    assert len(head) == 1 + len(DTYPES)
    for row in table:
        for name, result in zip(head[1:], row[1:], strict=True):
            assert promote(DTYPES[row[0]], DTYPES[name]).name == result


def test_all_words_of_the_language_are_named() -> None:
    for word in [*KEYWORDS, *DTYPES, "while", "cond", "switch"]:
        assert f"`{word}" in TEXT or f'"{word}"' in TEXT
