"""What expressions mean: operators, types, functions."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from scopes import Scope, failure, value

from opstep.runtime.device.payload import payload
from opstep.runtime.expressions import FUNCTIONS, Nowhere, by_family, parse
from opstep.runtime.ir.types import DTYPES, dtype

X = np.array([[1, -2, 3], [4, 5, -6]], "f4")


# --- operators ---


@pytest.mark.parametrize(
    "text, wanted",
    [
        ("1 + 2 * 3", 7), ("(1 + 2) * 3", 9), ("-2 ** 2", -4), ("2 ** -1", 0.5),
        ("2 ** 3 ** 2", 512),
        ("7 // 2", 3), ("-7 // 2", -4), ("-7 % 3", 2), ("7 / 2", 3.5), ("6 / 3", 2.0), ("--3", 3),
        ("1 < 2", True), ("1 < 2 < 3", True), ("1 < 3 < 2", False), ("not 0", True),
        ("not 1 == 2", True), ("1 == 1 and 2 == 3", False), ("false or true and false", False),
        ("true + true", 2), ("2 ** 62", 2**62), ("2 ** 64", 2.0**64), ("1 / 0", np.inf),
        ("0 / 0", np.nan), ("5 // 0", np.inf), ("1e3", 1000.0), (".5", 0.5), ("- - 2", 2),
        ("9223372036854775807 + 1", 2.0**63), ("10 - 3 - 2", 5), ("size([1, 2])", 2),
        ("not true or true", True), ("1 - -1", 2), ("abs(-3)", 3), ("max([3, 9, 4])", 9),
    ],
)  # fmt: skip
def test_numbers(text, wanted):
    np.testing.assert_equal(parse(text).evaluate(Nowhere()), wanted)


@pytest.mark.parametrize(
    "text, wanted",
    [
        ("a + b", "f4"), ("b + i", "f4"), ("i + j", "i8"), ("i + u", "i4"), ("u + s", "i2"),
        ("h + h", "f2"), ("h + b", "f4"), ("i + 0.5", "f8"), ("i / i", "f8"), ("a * 2", "f4"),
        ("a * 2.5", "f4"), ("h * 1e6", "f8"), ("u + 300", "i8"), ("m + m", "i8"), ("m * b", "f4"),
        ("-m", "i8"), ("a > b", "?"), ("i ** -1", "f8"), ("i ** 2", "i4"), ("h @ h", "f4"),
        ("i @ i", "i4"), ("sqrt(i)", "f8"), ("sqrt(u)", "f8"), ("sqrt(h)", "f2"), ("sum(a)", "f8"),
        ("sum(u)", "i8"), ("max(u)", "u1"), ("max(h)", "f2"), ("mean(h)", "f8"), ("floor(h)", "f2"),
        ("where(m, a, 0)", "f4"), ("where(m, 1, 2.5)", "f8"), ("a and b", "?"), ("[1, 2]", "i8"),
        ("[1, 2.5]", "f8"), ("[true, false]", "?"), ("cumsum(u)", "i8"), ("bits(a)", "i4"),
    ],
)  # fmt: skip
def test_types_of_results(text, wanted):
    one = np.ones(2)
    names = {"a": "f4", "b": "f4", "i": "i4", "j": "i8", "u": "u1", "s": "i1", "h": "f2", "m": "?"}
    found = value(text, **{name: one.astype(t) for name, t in names.items()})
    assert found.dtype == np.dtype(wanted)


def test_names_in_backquotes():
    names = {"0.weight": np.arange(4.0), "and": np.array(2.0), "w": np.array(3.0), "a (b)": X}
    assert value("`0.weight`[1:] * `w`", **names).tolist() == [3, 6, 9]
    assert value("sum(`0.weight`) + `and`", **names) == 8
    assert value("`a (b)`[0, 0] and w", **names)
    assert parse("`0.weight` + `w`").names == parse("w * `0.weight`").names[::-1]
    assert "the name is not closed" in str(failure("1 + `0.weight"))
    assert "there is no name between the backquotes" in str(failure("max(``)"))
    assert "only functions are called" in str(failure("`max`(1)"))
    assert "there is no 0.w here" in str(failure("`0.w`", **names))


def test_bf16_is_combined_as_the_language_does():
    b = np.array([1, 2.5, -3], ml_dtypes.bfloat16)
    h = np.array([1, 2, 3], "f2")
    for text, wanted in (
        ("b * 2.5", b.dtype), ("b + b", b.dtype), ("b + h", np.dtype("f4")),
        ("b > 1", np.dtype("?")),
        ("abs(b)", b.dtype), ("b[1]", b.dtype), ("max(b)", b.dtype), ("b + 1e39", np.dtype("f8")),
        ("sort(b)", b.dtype), ("unique(b)", b.dtype), ("b @ b", np.dtype("f4")),
    ):  # fmt: skip
        assert value(text, b=b, h=h).dtype == wanted, text
    assert value("b @ b", b=b) == 16.25
    assert value("b == 2.5", b=b).tolist() == [False, True, False]


def test_a_written_number_is_compared_in_the_tensors_type():
    assert value("x == 0.1", x=np.float32(0.1)) and value("x == 0.1", x=np.float16(0.1))
    assert not value("x > 1e5", x=np.float16(60000))
    assert value("x > 1e5", x=np.float16(np.inf))
    assert not value("x == 300", x=np.uint8(44))
    assert value("x < 300", x=np.array([1, 255], "u1")).all()
    assert value("x > -1", x=np.array([0, 255], "u1")).all()


def test_shapes_are_compared_as_a_whole():
    assert value("shape(x) == [2, 3]", x=X) is True
    assert value("shape(x) == [2, 4]", x=X) is False
    assert value("shape(x) != [2]", x=X) is True
    assert value("shape(x)[-1]", x=X) == 3
    assert value('dtype(x) == "f32"', x=X) is True


def test_conditions_hold_where_any_element_is_true():
    scope = Scope({"x": X, "flag": np.array(False), "none": np.zeros((0, 3), "f4")})
    for text, wanted in (
        ("x > 4", True), ("x > 5", False), ("all(x > -7)", True), ("flag", False),
        ("not flag", True),
        ("x", True), ("0", False), ("0.5", True), ("nan", True), ("none", False), ("nan(x)", False),
        ("not nan(x)", True), ("size(none) > 0 and none[0, 0] > 1", False),
        ("size(x) > 0 or x[9] > 1", True), ("changed(x)", False),
    ):  # fmt: skip
        assert parse(text).holds(scope) is wanted, text


# --- functions ---


def test_predicates_say_which_where_a_mask_is_taken():
    x = np.array([1, np.nan, np.inf, -np.inf, np.nan], "f4")
    assert value("nan(x)", x=x) is True
    assert value("finite(x)", x=x) is False and value("finite([1, 2])") is True
    assert value("inf(x)", x=x[:2]) is False
    assert value("where(nan(x))", x=x).tolist() == [1, 4]
    assert value("count(inf(x))", x=x) == 2 and value("sum(nan(x))", x=x) == 2
    assert value("mean(nan(x))", x=x) == 0.4
    assert value("x[not nan(x) and not inf(x)]", x=x).tolist() == [1]
    assert value("count(nan(x) == inf(x))", x=x) == 1
    assert value("count(nan(x)@-0)", x=x) == 2
    assert value("nan(i)", i=np.arange(3)) is False


def test_unwritten_elements():
    x = np.zeros(5, "f4")
    x.view("u4")[3:] = payload(dtype("f32"))
    scope = Scope({"x": x})
    scope.steps[0]["x"].filled = True
    assert parse("unwritten(x)").holds(scope)
    assert parse("where(unwritten(x))").evaluate(scope).tolist() == [3, 4]
    error = failure("unwritten(y)", Scope({"y": np.full(3, np.nan)}))
    assert error.message == "whether it was written cannot be told"


def test_stats_and_their_fields():
    x = np.array([[1, 2, np.nan], [np.inf, 0, -np.inf]], "f4")
    scope = Scope({"x": x})
    scope.lookup("x").filled = True
    table = parse("stats(x)").evaluate(scope)
    figures = dict(table.rows)
    assert (figures["count"], figures["nan"], figures["posinf"], figures["zero"]) == (6, 1, 1, 1)
    assert parse("stats(x).mean").evaluate(scope) == 1
    assert parse("stats(x).max > 1 and stats(x).inf == 2").holds(scope)
    assert "f32[2, 3]" in table.text and "1 NaN" in table.text
    # of what is computed, as of what a device has
    own = parse("stats(x + 0)").evaluate(scope)
    assert own.rows == table.rows and own.text == table.text
    assert np.isnan(parse("stats(x).min").evaluate(Scope({"x": np.full(2, np.nan)})))
    error = failure("stats(x).nope", scope)
    assert "it has count, min" in error.hint


@pytest.mark.parametrize("name", ["f64", "f32", "f16", "bf16", "i64", "i8", "u8", "bool"])
def test_figures_of_arrays_are_a_devices(name):
    rng = np.random.default_rng(3)
    x = (rng.normal(size=200) * 10.0 ** rng.integers(-3, 3, 200)).astype(dtype(name).numpy)
    scope = Scope({"x": x})
    here, there = (parse(t).evaluate(scope) for t in ("stats(reshape(x, [8, -1]))", "stats(x)"))
    for (figure, ours), (_, theirs) in zip(here.rows, there.rows, strict=False):
        assert ours == theirs, figure
    ours, theirs = (parse(f"hist({t})").evaluate(scope) for t in ("flatten(x)", "x"))
    assert ours.rows == theirs.rows and ours.text == theirs.text


def test_histograms():
    x = np.array([0, 0.75, 1, 1.5, -3, np.nan], "f4")
    table = value("hist(x)", x=x)
    assert table.rows == [
        ("0", "", 1), ("2**-1", "2**0", 1), ("2**0", "2**1", 2), ("2**1", "2**2", 1),
        ("NaN", "", 1),
    ]  # fmt: skip
    assert table.fields["counts"].sum() == 4
    table = value("hist(x, 2)", x=x)
    assert [count for _, _, count in table.rows] == [1, 4]
    assert value("hist(x, 2).edges", x=x).tolist() == [-3, -0.75, 1.5]
    assert value("hist(x, 3)", x=np.array([np.nan])).text == "no finite elements"


def test_topk():
    table = value("topk(x, 2)", x=X)
    assert table.rows == [((1, 1), 5), ((1, 0), 4)]
    assert value("topk(abs(x), 1).places", x=X).tolist() == [[1, 2]]
    assert value("topk(x, 9)", x=np.array([1, np.nan, 3], "f4")).rows == [((2,), 3), ((0,), 1)]
    assert value("topk(x, 3).values", x=np.array([5, 5, 7, 5])).tolist() == [7, 5, 5]
    assert value("topk(x, 3).places", x=np.array([5, 5, 7, 5])).tolist() == [[2], [0], [1]]


def test_diff():
    a = np.array([[1, 2, np.nan], [np.inf, 5, 6]], "f4")
    b = a.copy()
    assert value("diff(a, b)", a=a, b=b).text == "equal in all 6 elements"
    assert value("diff(a, b).differing", a=a, b=b) == 0
    b[0, 1] = np.nextafter(np.float32(2), np.float32(3))
    b[1, 1] = 4
    fields = value("diff(a, b)", a=a, b=b).fields
    assert (fields["differing"], fields["count"], fields["first"]) == (2, 6, (0, 1))
    assert (fields["max_abs"], fields["max_rel"]) == (1, 0.25)
    assert fields["max_ulp"] == 1 << 21  # between 4 and 5
    assert value("diff(a, b).max_ulp", a=np.float32(-1e-45), b=np.float32(1e-45)) == 2
    b[0, 0] = np.nan
    table = value("diff(a, b)", a=a, b=b)
    assert table.fields["nan"] == 1 and "1 NaN on one side only" in table.text
    assert value("diff(a, 1).differing", a=np.ones(3)) == 0
    assert value("same(a, a)", a=a) is True and value("same(a, b)", a=a, b=b) is False
    assert value("close(a, a + 1e-9)", a=np.ones(3)) is True
    assert value("same(a, b)", a=np.array([0.0]), b=np.array([-0.0])) is False


@pytest.mark.parametrize("to", sorted(DTYPES))
@pytest.mark.parametrize("of", ["f64", "f32", "f16", "bf16", "i64", "u8"])
def test_casts_are_those_of_the_op(of, to):
    from opstep.kernels.pointwise.selection import cast
    from opstep.runtime.device.cpu.device import execute

    x = np.array([0, 1, -1, 2.5, -2.5, 127, 128, 255, 256, 65504, 1e6, 3e9, -3e9, 1e19, 1e-6])
    x = np.concatenate([x, [np.nan, np.inf, -np.inf] if of[0] != "i" and of != "u8" else []])
    if of in ("i64", "u8"):
        x = np.clip(x, 0 if of == "u8" else -(2.0**62), 255 if of == "u8" else 2.0**62)
    with np.errstate(all="ignore"):
        x = x.astype(dtype(of).numpy)
    (wanted,) = execute(cast, [x], {"dtype": dtype(to)})
    found = value(f"cast(x, {to})", x=x)
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found.astype("f8"), wanted.astype("f8"))


def test_large_halves_do_not_overflow_on_the_way():
    h = np.full(1000, 1000, "f2")
    assert value("sum(h)", h=h) == 1e6 and value("l2(h)", h=h) == pytest.approx(1e3 * 1000**0.5)
    assert value("l2(x)", x=np.array([3e200, 4e200])) == pytest.approx(5e200)
    assert value("absmax(x)", x=np.array([-128, 5], "i1")) == 128
    assert value("h @ h", h=h) == pytest.approx(1e9)


def test_every_function_has_words_and_a_family():
    for name, found in FUNCTIONS.items():
        assert found.signature.startswith(f"{name}("), name
        assert len(found.doc) > 5 and found.doc.endswith("."), name
        assert not found.masked or found.masked in FUNCTIONS
    listed = [f for family in by_family().values() for f in family]
    assert len(listed) == len(FUNCTIONS)
