"""What is said to help against a rule."""

import pytest

from opstep.runtime.nan.advice import advice


@pytest.mark.parametrize(
    "rule, word",
    [
        ("log of a negative number", "below 0"),
        ("log of 0, 1 + x", "-infinity"),
        ("overflow of f16", "65,504"),
        ("overflow of f32 on the way to the result", "largest number"),
        ("0 times infinity", "mask"),
        ("something of its own", ""),
    ],
)
def test_rules_are_explained_by_what_helps(rule, word):
    assert word in advice(rule) if word else advice(rule) == ""


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
