"""Formatting gives what ``opstep fmt`` gives, and loses nothing that cannot be read."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lsp.lsp_client import editor

from opstep.lsp.file import File
from opstep.lsp.formatting import changes, changes_within
from opstep.lsp.project import Project
from opstep.runtime.ir.parser import parse, parse_with_diagnostics
from opstep.runtime.ir.printer import print_module

ROOT = Path(__file__).resolve().parent.parent.parent
OPTIONS = {"tabSize": 4, "insertSpaces": True}
UNTIDY = """\
param   w:f32[ 4 ]=zeros( )
# About f.


graph f(x:f32[N])->f32[N]{
      y=relu( x )   # behind
  z = exp(y)

  return z }
"""
PIECES = [
    "\n", "\n\n", " ", "  ", "# note", "graph g() {\n}\n", "param v: f32[2]\n", "}", "(", "\t",
    "  q = add(x,x)\n", "state s: i32[]=0", "\r\n", "=", "é",
]  # fmt: skip


def formatted(text: str) -> str:
    found = list(changes(File(Project(), "file:///m.opg", "m.opg", text, 1)))
    for change in reversed(found):
        text = text[: change.start] + change.text + text[change.end :]
    return text


edits = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 4), st.sampled_from(PIECES)), max_size=6)


@settings(max_examples=150, deadline=None)
@given(edits)
def test_it_is_what_the_command_writes(made):
    text = UNTIDY
    for where, length, piece in made:
        start = int(where * len(text))
        text = text[:start] + piece + text[start + length :]
    text = text.replace("\r", "")
    module, faults = parse_with_diagnostics(text)
    if not faults:
        assert formatted(text) == print_module(module)
        crlf = text.replace("\n", "\r\n")
        assert formatted(crlf) == formatted(text).replace("\n", "\r\n")
    else:  # nothing but blanks comes or goes, and what cannot be read stays as it is
        again = formatted(text)
        assert formatted(again) == again
        assert [str(d.message) for d in parse_with_diagnostics(again)[1]] == [
            d.message for d in faults
        ]


@pytest.mark.parametrize("path", sorted(ROOT.glob("examples/*.opg")), ids=lambda p: p.stem)
def test_a_file_in_the_standard_layout_stays(path):
    text = path.read_text(encoding="utf-8")
    assert formatted(text) == text == print_module(parse(text))


def test_the_editor_gets_the_lines_that_differ():
    with editor() as client:
        document = client.open(UNTIDY)
        edits = client.about("formatting", options=OPTIONS)
        assert document.edited(edits) == print_module(parse(UNTIDY))
        lines = "".join(document.at(e["range"]) for e in edits)
        assert "z = exp(y)" not in lines  # it is right already
        client.rewrite(document.edited(edits))
        assert client.about("formatting", options=OPTIONS) == []


def test_a_range():
    with editor() as client:
        document = client.open(
            "graph f(x:f32[N]) {\n  a‹a›=relu(x)\n  b = exp(x)\n  c=exp(x)‹c›\n}\n"
        )
        edits = client.about("rangeFormatting", range=document.range("a", "a"), options=OPTIONS)
        lines = document.edited(edits).splitlines()
        assert lines[1] == "  a = relu(x)" and lines[3] == "  c=exp(x)"


def test_what_cannot_be_read_stays():
    broken = "graph f(x:f32[N]) {\n   y=relu(\n}\n\n\ngraph g(x:f32[N]) {\n   y=relu(x)\n}\n"
    wanted = "graph f(x:f32[N]) {\n   y=relu(\n}\n\n\ngraph g(x: f32[N]) {\n  y = relu(x)\n}\n"
    assert formatted(broken) == wanted


MOVING = """graph f(
  x: f32[N],  # ‹head›first
  w: f32[N]
) -> f32[N] {
  y = add(
    # the one
    x,
    ‹operand›w  # the other
  )
  return   y  # ‹end›done
}
"""


@pytest.mark.parametrize("mark", ["head", "operand", "end"])
def test_a_range_keeps_comments_that_move_out_of_it(mark):
    with editor() as client:
        document = client.open(MOVING)
        edits = client.about("rangeFormatting", range=document.range(mark, mark), options=OPTIONS)
        after = document.edited(edits)
        assert after != document.text
        for comment in ("# first", "# the one", "# the other", "# done"):
            assert after.count(comment) == 1
        parse(after)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_range_keeps_all_that_is_said(data):
    text = MOVING + UNTIDY
    for mark in ("head", "operand", "end"):
        text = text.replace(f"‹{mark}›", "")
    for piece in data.draw(
        st.lists(st.sampled_from([" # a\n", "\n# b\n", "\n", "  "]), max_size=6)
    ):
        places = [k for k, c in enumerate(text) if c in " ,(=\n"]
        k = data.draw(st.sampled_from(places)) + 1
        text = text[:k] + piece + text[k:]
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    after = text
    file = File(Project(), "file:///m.opg", "m.opg", text, 1)
    for change in reversed(changes_within(file, start, end)):
        after = after[: change.start] + change.text + after[change.end :]
    assert said(after) == said(text)


def said(text: str) -> tuple[str, Counter[str]]:
    """What is not layout: all but comments, in its order, and the comments."""
    parts = [line.partition("#") for line in text.split("\n")]
    comments = Counter("".join(comment.split()) for _, sign, comment in parts if sign)
    return "".join("".join(code.replace(",", "").split()) for code, _, _ in parts), comments
