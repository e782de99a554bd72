"""Expressions around what they compute: other steps and runs, errors, limits, values set."""

from __future__ import annotations

import numpy as np
import pytest
from scopes import Scope, failure

from opstep.runtime.expressions import (
    ExpressionError,
    Limits,
    as_tensor,
    assign,
    complete,
    parse,
)
from opstep.runtime.ir.types import TensorType, dtype

X = np.array([[1, -2, 3], [4, 5, -6]], "f4")

# --- other steps, runs and files ---


def test_other_steps_and_runs():
    one, two, three = ({"x": X * k, "k": np.array(k)} for k in (1, 2, 3))
    other = Scope({"x": X * 7})
    scope = Scope(one, two, three, runs={("3f2a", 12): other, ("last", None): other})
    for text, wanted in (
        ("x[0, 0]", 3), ("x[0, 0]@-1", 2), ("x@-2[0, 0]", 1), ("prev(x)[0, 0]", 2),
        ("x@-0[0, 0]", 3),
        ("prev(x, 2)[0, 0]", 1), ("mean(x - prev(x))@-1", float(X.mean())), ("x@0[0, 0]", 3),
        ('x@"3f2a:12"[0, 0]', 7), ('x@"last"[0, 0]', 7), ("diff(x, x@-1).max_abs", 6),
        ("changed(x)", True), ("changed(dtype(x) == 'f32')", False), ("k@-1 + k", 5),
        ("prev(prev(x))[0, 0]", 1),
    ):  # fmt: skip
        found = parse(text).evaluate(scope)
        assert found == pytest.approx(wanted), text
    assert failure("x@-3", scope).message == "there is no such step"
    assert failure("prev(x, 5)", scope).message == "there is no such step"
    assert "no run 77" in failure('x@"77:1"', scope).message
    assert "counted from here" in failure("x@2", scope).message
    assert failure("x @ 2.5", scope).column == 2


def test_changes_are_of_bits():
    nan = np.array([1, np.nan], "f4")
    assert parse("changed(x)").evaluate(Scope({"x": nan}, {"x": nan.copy()})) is False
    assert parse("changed(x)").evaluate(Scope({"x": nan}, {"x": -nan})) is True
    zero = np.zeros(3)
    assert parse("changed(x)").evaluate(Scope({"x": zero}, {"x": -zero})) is True
    assert parse("changed(x)").evaluate(Scope({"x": zero}, {"x": zero[:2]})) is True
    assert parse("changed(x)").evaluate(Scope({"x": zero})) is False
    assert parse("changed(x)").evaluate(Scope({}, {"x": zero})) is False


def test_files():
    scope = Scope({"x": X}, files={"x.npy": X})
    assert parse('same(load("x.npy"), x)').evaluate(scope) is True
    error = failure('1 + load("../x.npy")', scope)
    assert (error.message, error.column) == ("../x.npy is not below here", 4)
    assert error.hint == "only files below it are read"


# --- errors ---


@pytest.mark.parametrize(
    "text, column, message, hint",
    [
        ("", 0, "there is no expression", ""),
        ("x = 3", 2, "expected an operator or the end, not =", "write == to compare"),
        ("x && x", 2, "expected an operator or the end, not &&", "write and"),
        ("!x", 0, "expected a value, not !", "write not"),
        ("x ^ 2", 2, "expected an operator or the end, not ^", "write ** for a power"),
        ("(x", 2, "expected a ) that closes the parenthesis, not the end", ""),
        ("x[", 2, "expected an index, not the end", ""),
        ("x[]", 2, "there is no index between [ and ]", ""),
        ("x[1:2:0]", 2, "the step of a slice is not 0", ""),
        ("'abc", 0, "the string is not closed", ""),
        ("3x", 0, "3x is not a number", ""),
        ("x + $", 4, "unexpected character $", ""),
        ("meen(x)", 0, "there is no function meen", "did you mean mean?"),
        ("mean()", 0, "mean needs x: mean(x, axis=)", ""),
        ("mean(x, 0, 1)", 11, "too many arguments: mean(x, axis=)", ""),
        ("mean(x, axes=0)", 0, "mean takes no axes=: mean(x, axis=)", "did you mean axis?"),
        ("cast(x, f31)", 8, "f31 is no element type", ""),
        ("x(1)", 0, "there is no function x", ""),
        ("(x)(1)", 3, "only functions are called, by their names", ""),
        ("9223372036854775809", 0, "the integer does not fit 64 bits", ""),
        ("1e999", 0, "the number does not fit 64 bits", "write inf for infinity"),
        ("x[..., ...]", 10, "... stands only once among indices", ""),
        ("sum(axis=0, x)", 12, "expected NAME=value after another NAME=value, not x", ""),
    ],
)
def test_what_cannot_be_read(text, column, message, hint):
    with pytest.raises(ExpressionError) as caught:
        parse(text)
    error = caught.value
    assert (error.column, error.message) == (column, message)
    assert error.hint.startswith(hint)


@pytest.mark.parametrize(
    "text, column, message",
    [
        ("1 + yy", 4, "there is no yy here"),
        ("x.shape", 0, "there is no x.shape here"),
        ("x + y", 2, "f32[2, 3] and f32[2] do not broadcast"),
        ("x < y", 2, "f32[2, 3] and f32[2] do not broadcast"),
        ("x[5]", 1, "index 5 is out of range: axis 0 has 2"),
        ("x[0, 0, 0]", 1, "3 indices for a tensor of rank 2"),
        ("(x + 1)[0, 9]", 7, "index 9 is out of range: axis 1 has 3"),
        ("x[0.5]", 2, "an index is an integer"),
        ("mean(x, axis=7)", 0, "there is no axis 7: the rank is 2"),
        ("x @ x", 2, "f32[2, 3] @ f32[2, 3]: 3 columns, 2 rows"),
        ("1 + stats(x)", 2, "nothing can be computed with a table"),
        ("3[0]", 1, "a number has no elements"),
        ("max(x[:0])", 0, "there are no elements"),
        ("reshape(x, [4, 4])", 0, "6 elements do not make [4, 4]"),
        ("diff(x, y)", 0, "f32[2, 3] and f32[2] are of different shapes"),
        ("[x, y]", 0, "the rows of a list are of different shapes"),
        ("x[x]", 2, "f32[2, 3] is no index"),
        ("x[y > 0, 0, 0]", 1, "3 indices for a tensor of rank 2"),
        ("x[[true, true, true]]", 1, "the mask is [3] where the shape is [2]"),
        ("where(true)", 0, "where(c) looks for places in a tensor, c is one element"),
        ("quantile(x, 2)", 0, "q is between 0 and 1"),
        ("mean(x, axis=0.5)", 13, "axis is an integer, or a list of them: an axis is an integer"),
    ],
)
def test_what_cannot_be_evaluated(text, column, message):
    error = failure(text, x=X, y=np.ones(2, "f4"))
    assert (error.column, error.message) == (column, message)


def test_hints_and_carets():
    assert failure("x.mean", x=X).hint == "write mean(x)"
    assert failure("loss + 1", losses=X).hint == "did you mean losses?"
    assert failure("mean", x=X).hint == "it is a function: mean(x, axis=)"
    error = failure("1 + losss", loss=X)
    assert str(error.diagnostic).splitlines() == [
        "expression:1:5: error: there is no losss here",
        "  1 + losss",
        "      ^",
        "hint: did you mean loss?",
    ]
    assert str(error) == "column 5: there is no losss here (did you mean loss?)"
    assert str(failure("losss", loss=X)) == "there is no losss here (did you mean loss?)"


@pytest.mark.parametrize(
    "target, value, told",
    [
        ("x", "[1, 2", "  [1, 2\n       ^"),
        ("x", "zeroes(3)", "  zeroes(3)\n  ^"),
        ("x", "1 + yy", "  1 + yy\n      ^"),
        ("yy", "1", "  yy\n  ^"),
        ("x[5]", "1", "  x[5]\n   ^"),
        ("x[0, :", "1", "  x[0, :\n        ^"),
    ],
)
def test_assignments_say_which_side_is_wrong(target, value, told):
    with pytest.raises(ExpressionError) as caught:
        assign(Scope({"x": X}), target, value)
    assert told in str(caught.value.diagnostic)


def test_limits():
    big = np.zeros(1 << 20)
    scope = Scope({"x": big})
    few = Limits(bytes=1 << 20, seconds=5, work=1000)
    for text in ("x + 1", "sqrt(x)", "x[1:]", "x[[" + "0, " * 3000 + "0]] + reshape(x, [-1, 1])"):
        with pytest.raises(ExpressionError, match="bytes would be copied or computed"):
            parse(text).evaluate(scope, few)
    assert parse("mean(x) + max(abs(x)) + x[7]").evaluate(scope, few) == 0
    with pytest.raises(ExpressionError, match="would take 4,000 multiplications"):
        parse("x @ x").evaluate(Scope({"x": np.zeros(4000, "f4")}), few)
    with pytest.raises(ExpressionError, match="not done after 0 seconds"):
        parse("x + 1").evaluate(scope, Limits(seconds=0))


def test_results_are_not_views_of_the_tensor():
    scope = Scope({"x": X.copy()})
    for text in ("x[0]", "transpose(x)", "reshape(x, [-1])", "x[:, 1:]"):
        found = parse(text).evaluate(scope)
        assert not np.shares_memory(found, scope.steps[0]["x"]._array), text


def test_names():
    assert parse("a.b + mean(c, axis=d) - cast(e, f16) @ f[g:, h > a.b]").names == (
        "a.b", "c", "d", "e", "f", "g", "h",
    )  # fmt: skip


# --- setting values ---


@pytest.mark.parametrize(
    "target, given, wanted",
    [
        ("x", "0", [[0, 0, 0], [0, 0, 0]]),
        ("x[1]", "9", [[1, -2, 3], [9, 9, 9]]),
        ("x[0, 1]", "nan", [[1, np.nan, 3], [4, 5, -6]]),
        ("x[0, :2]", "[7, 8]", [[7, 8, 3], [4, 5, -6]]),
        ("x[..., -1]", "[0, inf]", [[1, -2, 0], [4, 5, np.inf]]),
        ("x[x < 0]", "0", [[1, 0, 3], [4, 5, 0]]),
        ("x", "x * 2", [[2, -4, 6], [8, 10, -12]]),
        ("x", "[[1, 2, 3], [4, 5, 6]]", [[1, 2, 3], [4, 5, 6]]),
        ("x[i]", "-1", [[1, -2, 3], [-1, -1, -1]]),
    ],
)
def test_values_are_set(target, given, wanted):
    before = X.copy()
    name, array, _ = assign(Scope({"x": before, "i": np.array(1)}), target, given)
    assert name == "x" and array.dtype == np.float32
    np.testing.assert_array_equal(array, wanted)
    np.testing.assert_array_equal(before, X)


@pytest.mark.parametrize(
    "target, given, message",
    [
        ("x + 1", "0", "neither a tensor nor a part"), ("q", "0", "there is no q here"),
        ("x", "[1, 2]", r"f32\[2\] is given where f32\[2, 3\] is wanted"),
        ("x", "", "no expression"), ("x[9]", "0", "out of range"), ("n", "nan", "cannot hold nan"),
        ("n", "0.5", "i32 cannot hold 0.5"), ("u", "300", "u8 cannot hold 300"),
        ("u", "-1", "u8 cannot hold -1"), ("x", '"a"', "no tensor"), ("x", "stats(x)", "table"),
        ("h", "1e6", "f16 cannot hold 1000000.0"), ("b", "2", "bool cannot hold 2"),
        ("n", "2 ** 31", "i32 cannot hold 2147483648"), ("x[0.5]", "1", "integer"),
        ("x[", "1", "expected an index"),
    ],
)  # fmt: skip
def test_values_that_do_not_fit_are_refused(target, given, message):
    scope = Scope({
        "x": X, "n": np.array(3, "i4"), "u": np.zeros(2, "u1"), "h": np.zeros(2, "f2"),
        "b": np.array(True),
    })  # fmt: skip
    with pytest.raises(ExpressionError, match=message):
        assign(scope, target, given)


@pytest.mark.parametrize(
    "literal, type, wanted",
    [
        ("[1, 2.5]", "bf16[2]", [1, 2.5]),
        ("inf", "bf16[2]", [np.inf, np.inf]),
        ("true", "bool[]", True),
        ("2 ** 53 + 1", "i64[]", 2**53 + 1),
    ],
)
def test_literals(literal, type, wanted):
    name, _, dims = type.rstrip("]").partition("[")
    t = TensorType(dtype(name), tuple(map(int, dims.split())))
    found = as_tensor(parse(literal).evaluate(Scope({})), t)
    assert (found.tolist(), found.dtype) == (wanted, t.dtype.numpy)


# --- completion ---


def test_completion():
    names = ["conv1.w", "conv1.b", "x", "mask"]
    found = complete("max(conv1.", 10, names)
    assert [(c.text, c.kind, c.start, c.end) for c in found] == [
        ("conv1.w", "tensor", 4, 10), ("conv1.b", "tensor", 4, 10),
    ]  # fmt: skip
    texts = [c.text for c in complete("ma", 2, names)]
    assert texts == ["mask", "max", "maximum"]
    assert complete("me(x)", 2, names)[0].detail.startswith("mean(x, axis=): Arithmetic mean")
    assert {c.text for c in complete("cast(x, f", 9, names)} == {"f64", "f32", "f16"}
    assert complete('load("x', 7, names) == [] and complete("3", 1, names) == []
    assert {c.text for c in complete("", 0, names)} >= {"x", "stats", "not", "true"}
    assert [c.text for c in complete("MAS", 3, names)] == ["mask"]

    assert complete("x", 99, names)[0].text == "x"


@pytest.mark.parametrize(
    "before, after, start",
    [("max(`0.w", "", 4), ("max(`0.w", "eight`)", 4), ("max(`", "`)", 4), ("`1.b` + `0.", "", 8)],
)
def test_completion_of_names_in_backquotes(before, after, start):
    found = complete(before + after, len(before), ["0.weight", "w", "1.b"])
    end = len(before) + len(after.rstrip(")"))
    assert ("`0.weight`", "tensor", "", start, end) in found
    assert "w" not in [c.text for c in found]
    assert [c.text for c in complete("max(wei", 7, ["0.weight", "`1"])] == []
