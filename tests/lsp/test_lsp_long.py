"""Very long graphs are read in slices, and nobody waits for them."""

from __future__ import annotations

import pytest

from opstep.lsp import checking, item
from opstep.lsp.file import File
from opstep.lsp.project import Project

LINES = 2_000


@pytest.fixture(autouse=True)
def _short_is_long(monkeypatch):
    monkeypatch.setattr(item, "LONG", 1_000)


def long_graph() -> str:
    body = "".join(f"  v{k} = relu(v{k - 1})\n" if k else "  v0 = relu(x)\n" for k in range(LINES))
    caller = "graph main(x: f32[N]) -> f32[N] {\n  y = long(x)\n  return y\n}\n"
    return f"graph long(x: f32[N]) -> f32[N] {{\n{body}  return v{LINES - 1}\n}}\n\n{caller}"


def test_it_is_not_there_while_it_is_read():
    file = File(Project(), "file:///m.opg", "m.opg", long_graph(), 1)
    long, main = file.items
    assert long.node is None
    assert long.verified is None
    assert main.verified is not None
    assert main.problems == []  # its head is enough for who calls it
    count = sum(1 for _ in checking.steps(file))
    assert count > LINES / 128
    assert long.node is not None
    assert long.verified is not None
    assert len(long.node.body) == LINES + 1
    assert [d for d in checking.messages(file) if d.severity == "error"] == []


def test_an_edit_while_it_is_read_begins_it_anew():
    text = long_graph()
    file = File(Project(), "file:///m.opg", "m.opg", text, 1)
    steps = checking.steps(file)
    for _ in range(4):
        next(steps)
    at = text.index("relu(v9)")
    file.replace(at, at + 4, "rell")
    (found,) = [d for d in checking.messages(file) if d.severity == "error"]
    assert found.message == "there is no op or graph rell"
    file.replace(at, at + 4, "relu")
    assert file.items[0].node is not None  # what is read stays there
    assert [d for d in checking.messages(file) if d.severity == "error"] == []


def test_an_edit_checks_only_what_it_touches(monkeypatch):
    file = File(Project(), "file:///m.opg", "m.opg", long_graph(), 1)
    checking.messages(file)
    at = file.text.index("  v1000 =")
    file.replace(at, at, "  fresh = exp(x)\n")
    assert sum(1 for _ in checking.steps(file)) < 6  # of 16 blocks, and two steps at the end
    checking.messages(file)
    at = file.text.index("  v1001 =")
    file.replace(at, at, "  # a comment\n")
    assert sum(1 for _ in checking.steps(file)) < 6
