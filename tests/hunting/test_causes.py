"""What lies behind a NaN, and what is lost without one: wraps, underflows, indices."""

from __future__ import annotations

import numpy as np
import pytest

import opstep
from opstep.hunting.search import hunt

EVERYTHING = "nan,inf,overflow,underflow,index"
WRAPS, BEYOND = "i32 wraps", "an index that does not exist"
DIVIDED, GONE = "integer division by 0", "underflow of f16 to 0"


def graph(takes: str, gives: str, *lines: str) -> str:
    body = "\n".join(f"  {line}" for line in lines)
    return f"graph main({takes}) -> {gives} {{\n{body}\n}}\n"


# name: text, inputs, the op that a hunt for NaNs names, what is behind it: line, element, rule
BEHIND = {
    "a wrap": (
        graph("x: i32[2]", "f32[2]", "k = mul(x, 100000)", "f = cast(k, dtype=f32)",
              "g = mul(f, 0.5)", "y = log(g)", "return y"),
        {"x": np.array([1, 30000], np.int32)}, "log", (2, (1,), WRAPS),
    ),
    "an integer division": (
        graph("x: i32[2], y: i32[2]", "f32[2]", "k = floor_div(x, y)", "f = cast(k, dtype=f32)",
              "g = sub(f, f)", "r = div(f, g)", "return r"),
        {"x": np.array([3, 0], np.int32), "y": np.array([0, 0], np.int32)},
        "div", (2, (0,), DIVIDED),
    ),
    "an index": (
        graph("t: i64[4], i: i32[2]", "f32[2, 1]", "k = gather(t, i)",
              "w = reshape(k, shape=[2, 1])", "f = cast(w, dtype=f32)", "g = mul(f, 1e30)",
              "return g"),
        {"t": np.arange(4), "i": np.array([1, 7], np.int32)}, "mul", (2, (1,), BEYOND),
    ),
    "an underflow": (
        graph("x: f16[2, 2], y: f16[2, 2]", "f16[2, 2]", "d = mul(x, x)", "t = transpose(d)",
              "r = div(y, t)", "return r"),
        {"x": np.array([[1, 1e-4], [1, 1]], "f2"), "y": np.ones((2, 2), "f2")},
        "div", (2, (0, 1), GONE),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BEHIND)
def test_what_lies_behind_is_told(name):
    text, inputs, op, (line, place, rule) = BEHIND[name]
    found = hunt(opstep.loads(text), "main", inputs)
    first = found.first
    assert first is not None and first.op == op and first.before is not None
    before = first.before
    assert (before.where.line, before.place, before.text) == (line, place, rule)
    assert f"before it: {before.value}[" in found.report() and rule in found.report()
    found = hunt(opstep.loads(text), "main", inputs, kinds=f"{EVERYTHING},absmax > 1e4")
    assert found.first is not None and found.first.where.line == line
    assert found.first.verdict.rules[0][0] == rule


def test_nothing_lies_behind_a_0_that_was_given_or_computed_rightly():
    text = graph("x: f32[3], y: f32[3]", "f32[3]", "d = sub(x, y)", "m = mul(d, 1e-30)",
                 "r = div(y, m)", "return r")  # fmt: skip
    x = np.array([1, 2, 3], "f4")
    found = hunt(opstep.loads(text), "main", {"x": x, "y": x})
    assert found.first is not None and found.first.before is None
    inputs = {"x": x, "y": np.array([1, 0, 3], "f4")}  # an underflow elsewhere
    inputs["x"][0] += np.float32(1e-7)
    found = hunt(opstep.loads(text), "main", inputs)
    assert found.first is not None and found.first.before is None


SILENT = {
    "one_hot": (
        graph("i: i32[2]", "f32[2, 3]", "y = one_hot(i, classes=3)", "return y"),
        {"i": np.array([1, 5], np.int32)}, "index", BEYOND,
    ),
    "scatter": (
        graph("x: f32[3], i: i32[1], s: f32[1]", "f32[3]", "y = scatter(x, i, s)", "return y"),
        {"x": np.zeros(3, "f4"), "i": np.array([3], np.int32), "s": np.ones(1, "f4")},
        "index", BEYOND,
    ),
    "cast": (
        graph("x: f32[2]", "i32[2]", "y = cast(x, dtype=i32)", "return y"),
        {"x": np.array([3e10, 1], "f4")}, "overflow", "beyond what i32 holds",
    ),
    "shift_left": (
        graph("x: i32[2]", "i32[2]", "y = shift_left(x, 20)", "return y"),
        {"x": np.array([1, 1 << 15], np.int32)}, "overflow", WRAPS,
    ),
    "iota": (
        graph("", "i8[2, 200]", "y = iota(shape=[2, 200], axis=1, dtype=i8)", "return y"),
        {}, "overflow", "i8 wraps",
    ),
    "iota of 64 bits": (
        graph("", "i64[2]", "y = iota(shape=[2], start=9223372036854775807)", "return y"),
        {}, "overflow", "i64 wraps",
    ),
    "iota of halves": (
        graph("", "f16[2]", "y = iota(shape=[2], step=1e-9, dtype=f16)", "return y"),
        {}, "underflow", GONE,
    ),
    "pow": (
        graph("x: i32[2]", "i32[2]", "y = pow(x, 2000)", "return y"),
        {"x": np.array([1, 3], np.int32)}, "overflow", WRAPS,
    ),
    "shift_left of bytes": (
        graph("x: u8[2]", "u8[2]", "y = shift_left(x, 2)", "return y"),
        {"x": np.array([63, 64], np.uint8)}, "overflow", "u8 wraps",
    ),
    "gather_grad": (
        graph("g: f32[2, 3], i: i64[2]", "f32[4, 3]", "y = gather_grad(g, i, size=4)", "return y"),
        {"g": np.ones((2, 3), "f4"), "i": np.array([0, 4])}, "index", BEYOND,
    ),
    "sub of bytes": (
        graph("x: u8[2]", "u8[2]", "y = sub(x, 5)", "return y"),
        {"x": np.array([4, 9], np.uint8)}, "overflow", "u8 wraps",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SILENT)
def test_what_makes_no_nan_is_found_if_it_is_asked_for(name):
    text, inputs, kind, rule = SILENT[name]
    assert not hunt(opstep.loads(text), "main", inputs).found
    found = hunt(opstep.loads(text), "main", inputs, kinds=EVERYTHING)
    assert found.first is not None
    assert (found.first.bad, found.first.verdict.rules[0][0]) == (kind, rule)


def test_an_element_that_underflows_names_its_own_operand_first():
    text = graph("x: f32[1, 5]", "f32[1, 5]", "y = softmax(x)", "return y")
    x = np.array([[-95, 84, -69, 97, 80]], "f4")
    found = hunt(opstep.loads(text), "main", {"x": x}, kinds="underflow")
    assert found.first is not None
    lost = {e.place: [b.place for b in e.blamed] for e in found.first.verdict.elements}
    assert lost == {(0, 0): [(0, 0), (0, 3), (0, 1)], (0, 2): [(0, 2), (0, 3), (0, 0)]}


LABELS = {"x": np.zeros((3, 2), "f4"), "i": np.array([0, -100, 2]), "g": np.ones(3, "f4")}
LOSSES = ("nll_loss(x, i", "softmax_cross_entropy(x, i")
LOSSES += ("nll_loss_grad(x, i, g", "softmax_cross_entropy_grad(x, i, g")


@pytest.mark.parametrize("loss", LOSSES)
def test_a_label_of_no_class_is_an_index_that_does_not_exist(loss):
    """And one that is to be ignored is not."""
    y = f'y = {loss}, reduction="none")'
    result, place = ("f32[3, 2]", (2, 0)) if "grad" in loss else ("f32[3]", (2,))
    text = graph("x: f32[3, 2], i: i64[3], g: f32[3]", result, y, "return y")
    found = hunt(opstep.loads(text), "main", LABELS, kinds="index")
    assert found.first is not None and found.first.bad == "index"
    assert (found.first.verdict.own, found.first.verdict.elements[0].place) == (
        2 if "grad" in loss else 1, place,
    )  # fmt: skip
    assert found.first.verdict.rules[0][0] == BEYOND
    fine = {**LABELS, "i": np.array([0, -100, 1])}
    assert not hunt(opstep.loads(text), "main", fine, kinds="nan,inf,index").found


@pytest.mark.parametrize("loss", LOSSES[:2])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_one_label_of_no_class_spoils_a_sum(loss, reduction):
    y = f'y = {loss}, reduction="{reduction}")'
    text = graph("x: f32[3, 2], i: i64[3], g: f32[3]", "f32[]", y, "return y")
    (found,) = hunt(opstep.loads(text), "main", LABELS, kinds="nan,inf,index").findings
    assert (found.bad, found.op) == ("index", loss.partition("(")[0])
    (blamed,) = (b for b in found.verdict.elements[0].blamed if b.operand == 1)
    assert (blamed.place, blamed.value) == ((2,), 2)


def test_wraps_and_divisions_by_0_of_one_op_are_told_apart():
    text = graph("x: i8[3], z: i8[3]", "i8[3]", "y = floor_div(x, z)", "return y")
    inputs = {"x": np.array([-128, 1, 6], np.int8), "z": np.array([-1, 0, 3], np.int8)}
    found = hunt(opstep.loads(text), "main", inputs, kinds="overflow")
    told = [(f.verdict.rules, f.verdict.elements[0].place, f.times) for f in found.findings]
    assert told == [((("i8 wraps", 1),), (0,), 1), (((DIVIDED, 1),), (1,), 1)]


def test_what_loses_nothing_is_no_finding():
    text = graph(
        "x: i32[4], b: u8[4], f: f32[4]", "i32[4], u8[4], f32[4]", "y = mul(x, x)",
        "s = shift_left(y, 2)", "n = bitwise_not(b)", "d = sub(f, 1.0)", "e = tanh(d)",
        "r = softmax(e)", "c = iota(shape=[128], dtype=i8)",
        "u = extent(of=[127], dtype=i8)", "return s, n, r",
    )  # fmt: skip
    inputs = {
        "x": np.array([-3, 0, 1, 1000], np.int32),
        "b": np.array([0, 1, 128, 255], np.uint8),
        "f": np.array([1, 1 + 1e-7, -1e30, 1e30], "f4"),
    }
    found = hunt(opstep.loads(text), "main", inputs, kinds=EVERYTHING)
    assert not found.found, found.report()
