"""What is said to help against a rule."""

import pytest

from opstep.runtime.nan.findings import advice
from opstep.runtime.nan.verdict import Element


@pytest.mark.parametrize(
    "rule, word",
    [
        ("log of a negative number", "below 0"),
        ("log of 0, 1 + x", "-infinity"),
        ("overflow of f32 on the way to the result", "must be smaller"),
        ("0 times infinity", "mask"),
        ("something of its own", ""),
    ],
)
def test_rules_are_explained_by_what_helps(rule, word):
    assert word in advice(rule) if word else advice(rule) == ""


@pytest.mark.parametrize(
    "rule, exact, word",
    [
        ("overflow of f16", 7e4, "65,504"),
        ("overflow of f32", 1e39, "A wider type"),
        ("overflow of f32", float("inf"), "must be smaller"),
        ("overflow of f32", None, "must be smaller"),
        ("overflow of f64 on the way to the result", 1.0, "must be smaller"),
    ],
)
def test_a_wider_type_is_advised_where_it_would_hold_the_result(rule, exact, word):
    assert word in advice(rule, "", [Element((0,), float("inf"), rule, exact, ())])


def test_of_a_derivative_what_the_line_calls_counts():
    assert "slope of sqrt at 0" in advice("division by 0", "return squares.sqrt()")
    assert "slope of norm at 0" in advice("0 / 0", "n = torch.linalg.norm(x, dim=1)")
    assert "epsilon" in advice("division by 0", "y = a / b")
    assert "came first" in advice("0 times infinity", "y = x.pow(2)")


def test_the_division_in_a_mean_is_not_the_users():
    assert "too few elements" in advice("0 / 0: the mean of no elements")
    assert "Labels" in advice("0 / 0: the mean of no labels, all are ignored")
    assert "epsilon above 0" in advice("0 / 0: the row is 0, and epsilon is 0")
    assert "unmasked" in advice("log of 0: all elements are -inf")
