"""Dims: arithmetic that agrees with integers, whatever the symbols turn out to be."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opstep.runtime.ir.diagnostics import OpstepError
from opstep.runtime.ir.dims import evaluate, symbol
from opstep.runtime.ir.parser import parse

N, M = symbol("N"), symbol("M")


def of(text: str):
    """A dim as the parser reads it."""
    (statement,) = parse(f"graph g() {{\n  y = f(k=[{text}, 0])\n}}\n").graphs["g"].body
    value = statement.attrs[0].value[0]
    return symbol(value.name) if hasattr(value, "name") else value


@st.composite
def trees(draw, depth: int = 3):
    """An expression as text, with its meaning on integers."""
    if depth == 0 or draw(st.booleans()):
        if draw(st.booleans()):
            name = draw(st.sampled_from("NMH"))
            return name, lambda sizes: sizes[name]
        number = draw(st.integers(0, 12))
        return str(number), lambda sizes: number
    (left, f), (right, g) = draw(trees(depth - 1)), draw(trees(depth - 1))
    operator = draw(st.sampled_from(["+", "-", "*", "//", "%"]))
    meaning = {
        "+": lambda s: f(s) + g(s),
        "-": lambda s: f(s) - g(s),
        "*": lambda s: f(s) * g(s),
        "//": lambda s: f(s) // g(s),
        "%": lambda s: f(s) % g(s),
    }
    return f"({left} {operator} {right})", meaning[operator]


@settings(max_examples=300, deadline=None)
@given(trees(), st.fixed_dictionaries({s: st.integers(1, 60) for s in "NMH"}))
def test_arithmetic_agrees_with_integers(tree, sizes) -> None:
    text, meaning = tree
    try:
        dim, expected = of(text), meaning(sizes)
    except (OpstepError, ZeroDivisionError):  # divided by zero, or too large for a dim
        return
    try:
        assert evaluate(dim, sizes) == expected
    except ZeroDivisionError:
        pytest.fail(f"{text} is {expected}, but {dim} divides by zero")


@settings(max_examples=300, deadline=None)
@given(trees())
def test_the_printed_form_reads_back_the_same(tree) -> None:
    try:
        dim = of(tree[0])
    except (OpstepError, ZeroDivisionError):  # divided by zero, or too large for a dim
        return
    assert of(str(dim)) == dim
    assert str(of(str(dim))) == str(dim)


@settings(max_examples=200, deadline=None)
@given(trees(), trees(), st.integers(1, 40))
def test_equal_dims_have_equal_hashes_and_texts(first, second, size) -> None:
    try:
        a, b = of(first[0]), of(second[0])
    except (OpstepError, ZeroDivisionError):  # divided by zero, or too large for a dim
        return
    if a == b:
        assert hash(a) == hash(b)
        assert str(a) == str(b)


@pytest.mark.parametrize(
    "text, simple",
    [
        ("N + N", "N*2"),
        ("(2*N)//2", "N"),
        ("(4*N + 6)//2", "N*2 + 3"),
        ("(4*N + 1)//2", "N*2"),
        ("N - N", "0"),
        ("N*0", "0"),
        ("(N*M)//N", "M"),
        ("(N + 1) - 1", "N"),
        ("(H + 2 - 3)//1 + 1", "H"),
        ("N % 1", "0"),
        ("(6*N) % 3", "0"),
        ("M*N", "M*N"),
        ("N*M", "M*N"),
        ("(H - 1)//2 + 1", "(H + 1)//2"),
        ("-N", "-N"),
        ("-N + 1", "1 - N"),
        ("L - K + 1", "L - K + 1"),
        ("-K*2 + L - 1", "L - K*2 - 1"),
        ("N//2//3", "(N//2)//3"),
    ],
)
def test_simple_forms(text: str, simple: str) -> None:
    assert str(of(text)) == simple


def test_dims_that_cannot_be_told_to_be_equal_are_not() -> None:
    assert N // 2 * 2 != N
    assert N % M != 0


def test_substitution_by_dims() -> None:
    assert evaluate(N * 2 + M, {"N": M}) == M * 3
    assert evaluate((N + 1) // 2, {"N": M * 2 + 1}) == M + 1
    assert evaluate(N, {}) == N
    with pytest.raises(ZeroDivisionError):
        evaluate(N // M, {"M": 0})


def test_symbols_of_an_expression() -> None:
    assert (N * 2 + (M - 1) // 3).symbols() == {"N", "M"}
    assert N.lone_symbol() == "N"
    assert (N * 2).lone_symbol() is None
    assert isinstance(N - N, int)
    assert not isinstance(N, int)
