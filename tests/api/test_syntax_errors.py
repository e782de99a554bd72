"""What is said of a file with syntax errors: of its other graphs, too."""

from __future__ import annotations

import pytest

import opstep

WHOLE = "graph whole(x: f32[4]) -> f32[4] {\n  y = relu(x, x)\n  return y\n}\n"


def errors_of(text: str) -> list[tuple[int, str]]:
    with pytest.raises(opstep.OpstepError) as caught:
        opstep.loads(text)
    found = caught.value.diagnostics
    return [(d.source.locate(d.span.start)[0], d.message) for d in found if d.source and d.span]


def test_errors_of_other_graphs_are_told():
    broken = "graph main(x: f32[4]) -> f32[4] {\n  y = whole(x\n  return y\n}\n"
    assert errors_of(broken + WHOLE) == [
        (2, "the ( is not closed"), (6, "relu takes 1 operand, not 2"),
    ]  # fmt: skip


def test_what_follows_from_a_broken_graph_is_not():
    broken = "graph inner(x: f32[4]) -> {\n  return x\n}\n"
    calling = "graph main(x: f32[4]) -> f32[4] {\n  y = inner(x)\n  return y\n}\n"
    assert [line for line, _ in errors_of(broken + calling)] == [1]


@pytest.mark.parametrize("word", ["grph", "def", "Graph"])
def test_a_misspelt_graph_is_one_error(word):
    text = f"{word} main(x: f32[4]) -> f32[4] {{\n  y = relu(x)\n  return y\n}}\n"
    assert errors_of(text) == [(1, f"expected param, state, mesh or graph, not {word}")]


def broken_graph(line: str, *more: str) -> str:
    """A graph with a line that cannot be read, and others below it."""
    head = "graph main(x: f32[4, 3], w: f32[4, 5]) -> f32[4, 3] {"
    return "\n  ".join([head, line, *more, "return x"]) + "\n}\n"


@pytest.mark.parametrize("line", ["y = relu(x", "y = = relu(x)", "y = relu(x) )", "y relu(x)"])
def test_a_syntax_error_does_not_hide_the_type_errors_of_its_graph(line):
    assert [n for n, _ in errors_of(broken_graph(line, "q = matmul(x, w)", "z = summ(x)"))] == [
        2, 3, 4,
    ]  # fmt: skip


def test_what_follows_from_a_line_that_was_not_read_is_not():
    text = broken_graph("y, z: f32[4, 3] = relu(x", "k = exp(y)", "l = neg(z)", "m = exp(nowhere)")
    assert [n for n, _ in errors_of(text)] == [2, 5]
    unfinished = "graph main(x: f32[4]) -> f32[4] {\n  y = relu(x)\n  retur y\n}\n"
    assert [n for n, _ in errors_of(unfinished)] == [3]
