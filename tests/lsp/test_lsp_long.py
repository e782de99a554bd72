"""Very long graphs are read in slices, and nobody waits for them."""

from __future__ import annotations

import pytest

from opstep.lsp import checking, item
from opstep.lsp.file import File
from opstep.lsp.project import Project
from opstep.runtime.ir.graph import Graph

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
    assert count > LINES / item.SLICE
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
    assert [d for d in checking.messages(file) if d.severity == "error"] == []


def test_an_edit_checks_only_the_graph_that_it_touches():
    file = File(Project(), "file:///m.opg", "m.opg", long_graph(), 1)
    checking.messages(file)
    long, main = file.items
    known = long.node, long.verified, long.summary
    at = file.text.index("  y = long(x)")
    file.replace(at, at, "  fresh = exp(x)\n")
    assert not main.is_read
    assert (long.node, long.verified, long.summary) == known
    assert sum(1 for _ in checking.steps(file)) < 6


def test_an_edit_reads_on_from_the_statement_that_it_touches():
    file = File(Project(), "file:///m.opg", "m.opg", long_graph(), 1)
    long = file.items[0]
    checking.messages(file)
    before = long.node
    at = file.text.index("  v1000 =")
    for new in ("  fresh = exp(", "x)  # so\n"):
        file.replace(at, at, new)
        at += len(new)
        checking.messages(file)
    assert isinstance(long.node, Graph) and isinstance(before, Graph)
    assert all(a is b for a, b in zip(long.node.body[:1000], before.body[:1000], strict=True))
    assert long.node.body[1001:] == before.body[1000:]
