"""An edited file gives what a fresh one gives, and that is what ``opstep check`` says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import opstep.kernels  # noqa: F401 - registers the ops
from opstep.kernels.stdlib import library
from opstep.lsp import item as items
from opstep.lsp.checking import messages
from opstep.lsp.file import File
from opstep.lsp.item import ItemSource
from opstep.lsp.project import Project
from opstep.runtime.ir.diagnostics import Diagnostic, Note
from opstep.runtime.ir.parser import parse_with_diagnostics
from opstep.runtime.ir.verify import verify_with_diagnostics

ROOT = Path(__file__).resolve().parent.parent.parent
SMALL = """\
# What is trained.
param w: f32[4] = ones()
state step: i32[] = 0
mesh data: 2, model: 2

# Twice as much.
graph double(x: f32[N]) -> f32[N] {
  y = add(x, x)  # behind
  return y
}

graph main(x: f32[4], n: i32[]) -> f32[4] {
  a = mul(x, w)
  # above b
  b = double(a)

  c = relu(b)
  d: f32[4] = exp(c)
  e, f = split(d, sections=2)
  g = concat(e, f)
  more = add(step, 1)
  step <- more
  h = while(g, test=large, body=double)
  k = sum(h)
  fine = isfinite(k)
  assert fine, "not fine"
  l = add(g, h)
  return l
}

graph shared(x: f32[8]) -> f32[4] {
  y = reduce_scatter(x, over=data)
  z = all_reduce(y, over=[data, model])
  return z
}

graph large(x: f32[N]) -> bool[] {
  s = max(x)
  y = greater(s, 100)
  return y
}

graph half<T: float>(x: T[N], k: i32[]) -> T[N] {
  y: T[N] = mul(x, 0.5)
  z = full(shape=[N], value=1.0, dtype=T)
  v = double(z)
  return y
}

graph halves(x: f16[N]) -> f16[N] {
  y = half(x, 1)
  return y
}
"""
PIECES = [
    "", "\n", "}", "{", "(", ")", "x", "a", "b", "w", "double", "relu", "graph", "param", "#", " ",
    "  v = relu(x)\n", "  y = relu(a)\n", "  return b\n", "graph more(x: f32[N]) -> f32[N] {\n",
    "param v: f32[2] = zeros()\n", "state step: i64[] = 1\n", "}\n", "}\n\n", "# note\n", "\n\n",
    "  z = add(a,\n", "=", ", ", "[", "]", "f32[N]", "\"", "\r\n", "\ufeff", "é", "𝔘",
    "  double(x)\n",
    "graph double(x: i32[M]) -> i32[M] {\n  return x\n}\n", "  w <- x\n", "  step <- x\n", "1",
    "graph relu(x: f32[N]) -> f32[N] {\n  return x\n}\n", "N", "  return a, b\n", " at \"f.py\":3",
    "mesh data: 4\n", "mesh ", "data", ", model: 2", "over=data", "8",
    "T[M]", "<T: int>", "<T>", "T", "float", "half",
    "graph mha(x: f32[N]) -> f32[N] {\n", "  loop = double(loop)\n", "\n  # c\n  \n",
]  # fmt: skip


PROJECT = Project()  # has the standard library, which is read once


def source(text: str) -> File:
    return File(PROJECT, "file:///m.opg", "m.opg", text, 1)


def absolute(file: File, d: Diagnostic) -> tuple[Any, ...]:
    """A message with offsets of the file."""

    def place(source: Any, span: Any) -> Any:
        if span is None:
            return None
        if isinstance(source, ItemSource) and source.item.file is file:
            return span.start + source.item.start, span.end + source.item.start
        return Path(source.path).name, *span

    notes = tuple(
        (n.message, place(n.source or d.source, n.span)) for n in (Note(*n) for n in d.notes)
    )
    return d.severity, d.message, d.hint, place(d.source, d.span), notes


def nodes(file: File) -> list[str]:
    """All that was read, with every span."""
    return [repr(item.node) for item in file.items]


def types(file: File) -> list[Any]:
    found = []
    for item in file.items:
        v = item.verified
        found.append(v and (dict(sorted(v.types.items())), len(v.applications), v.symbols, v.steps))
    return found


def check_same(file: File) -> None:
    """Holds an edited file against a fresh one."""
    fresh = source(file.text)
    assert [i.text for i in file.items] == [i.text for i in fresh.items]
    assert [i.start for i in file.items] == [i.start for i in fresh.items]
    assert [i.name for i in file.items] == [i.name for i in fresh.items]
    assert file.lines.starts == fresh.lines.starts
    assert [absolute(file, d) for d in messages(file)] == [
        absolute(fresh, d) for d in messages(fresh)
    ]
    assert nodes(file) == nodes(fresh)
    assert types(file) == types(fresh)


def check_agrees(file: File) -> None:
    """Holds a file against the parser and the verifier on the whole text."""
    module, syntax = parse_with_diagnostics(file.text, "m.opg")
    ours = [d for d in messages(file) if d.severity == "error"]
    if syntax:
        ours = [d for d in ours if any(d in item.syntax for item in file.items)]
        wanted = syntax
    else:
        _, wanted = verify_with_diagnostics(module, library=library())
    assert [absolute(file, d) for d in ours] == [whole(d) for d in wanted]


def whole(d: Diagnostic) -> tuple[Any, ...]:
    def place(source: Any, span: Any) -> Any:
        if span is None or source.path == "m.opg":
            return span and tuple(span)
        return Path(source.path).name, *span

    notes = tuple(
        (n.message, place(n.source or d.source, n.span)) for n in (Note(*n) for n in d.notes)
    )
    return d.severity, d.message, d.hint, place(d.source, d.span), notes


edits = st.lists(
    st.tuples(st.floats(0, 1), st.integers(0, 40), st.sampled_from(PIECES)), min_size=1, max_size=8
)


def apply(file: File, edit: tuple[float, int, str]) -> None:
    where, length, piece = edit
    start = int(where * len(file.text))
    if length > 20:  # mostly insertions
        length = 0
    file.replace(start, min(len(file.text), start + length), piece)


@pytest.fixture(autouse=True)
def _short_slices(monkeypatch):
    monkeypatch.setattr(items, "SLICE", 3)


@settings(max_examples=40, deadline=None)
@given(edits)
@example([(0.1875, 0, "\n"), (0.15625, 1, "")])  # a graph with a broken head gets another name
@example([(0.634, 37, "param v: f32[2] = zeros()\n"), (0.5143, 24, "}"), (0.663, 10, "f32[N]")])
@example([(0.99609375, 3, ""), (1.0, 0, "\n")])  # a brace above stays where it is
@example([(0.0, 0, "  v = relu(x)\n"), *[(0.0, 0, "graph more(x: f32[N]) -> f32[N] {\n")] * 2])
def test_an_edited_file_is_as_a_fresh_one(made):
    file = source(SMALL)
    for edit in made:
        messages(file)  # so that there is something to be forgotten
        apply(file, edit)
        check_same(file)
    check_agrees(file)


@settings(max_examples=30, deadline=None)
@given(edits, st.lists(st.booleans(), min_size=8, max_size=8))
def test_also_where_nobody_looks_in_between(made, looks):
    file = source(SMALL)
    for edit, look in zip(made, looks, strict=False):
        if look:
            messages(file)
        apply(file, edit)
    check_same(file)


@settings(max_examples=30, deadline=None)
@given(edits, st.lists(st.integers(0, 12), min_size=8, max_size=8))
@example([*[(0.0, 0, "")] * 4, (0.09375, 0, "\n")], [0, 3, 3, 4, 12, 0, 0, 0])  # it moves a callee
def test_also_where_checking_is_left_in_the_middle(made, counts):
    from opstep.lsp.checking import steps

    file = source(SMALL)
    for edit, count in zip(made, counts, strict=False):
        for _ in zip(range(count), steps(file), strict=False):
            pass
        apply(file, edit)
    check_same(file)


@pytest.mark.parametrize(
    "path",
    sorted([*ROOT.glob("examples/*.opg"), *ROOT.glob("tests/runtime/ir/errors/*.opg")]),
    ids=lambda p: p.stem,
)
def test_a_file_is_checked_as_by_the_command(path):
    text = path.read_text(encoding="utf-8")
    check_agrees(source(text))
    typed = source("")
    for k in range(0, len(text), 40):  # as if it were typed
        typed.replace(len(typed.text), len(typed.text), text[k : k + 40])
        messages(typed)
    check_same(typed)
    check_agrees(typed)


OWN = """\
graph attention_scores<T: float>(q: T[B, H, L, D], k: T[B, H, S, D]) -> T[B, H, S, L] {
  a = zeros(shape=[B, H, S, L], dtype=T)
  return a
}

graph main(q: f32[B, H, L, D], k: f32[B, H, S, D], v: f32[B, H, S, E]) -> f32[B, H, L, E] {
  y = attention(q, k, v)
  return y
}
"""


def test_the_library_does_not_call_the_graphs_of_the_file():
    file = source(OWN)
    check_agrees(file)
    assert "error" not in [d.severity for d in messages(file)]
    alone = source(OWN[OWN.index("graph main") :])
    check_agrees(alone)
    assert file.graphs["main"].verified.steps == alone.graphs["main"].verified.steps > 1
    start = file.text.index("zeros(")
    file.replace(start, start + 5, "ones")
    check_agrees(file)
    check_same(file)


def test_a_call_that_never_ends_is_told_with_its_places():
    file = source(SMALL)
    start = file.text.index("add(x, x)")
    file.replace(start, start + 9, "again(x)")
    file.replace(0, 0, "graph again(x: f32[N]) -> f32[N] {\n  y = double(x)\n  return y\n}\n\n")
    check_agrees(file)
    assert any("never ends" in d.message for d in messages(file))
    file.replace(0, 0, "# moved\n")
    check_agrees(file)
    check_same(file)
