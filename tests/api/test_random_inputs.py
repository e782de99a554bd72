"""Random inputs suit the ops that read them, through the door that all commands use."""

from __future__ import annotations

import numpy as np
import pytest

import opstep
from opstep.api import sources
from opstep.runtime.ir.errors import InputError

SIZES = {"N": 300}


def drawn(tmp_path, head, *body, word="random", result="f32[N]"):
    """The inputs of a graph by name, and what is said of them."""
    text = "\n  ".join([f"graph main({head}) -> {result} {{", *body, "return y"])
    path = tmp_path / "a.opg"
    path.write_text(f"{text}\n}}\n")
    program = opstep.load(path)
    graph = program.graph("main")
    arrays = sources.gather(program, graph, [word], SIZES, 0)
    told = sources.described(program, graph, [word], arrays)
    return program, arrays, "; ".join(told)


@pytest.mark.parametrize(
    ("body", "low", "high", "what"),
    [
        (["y = sqrt(x)"], 0, 9, "positive numbers (sqrt, a.opg:2)"),
        (["y = rsqrt(x)"], 1e-4, 9, "positive numbers (rsqrt, a.opg:2)"),
        (["y = asin(x)"], 0, 1, "numbers from 0.001 to 0.999 (asin, a.opg:2)"),
        (["y = acosh(x)"], 1, 9, "numbers above 1 (acosh, a.opg:2)"),
        (["y = pow(x, 0.5)"], 0, 9, "positive numbers (pow, a.opg:2)"),
        (["y = pow(x, 2.0)"], -9, 9, "normal numbers"),
        (["n = neg(x)", "y = sqrt(n)"], -9, 0, "negative numbers (sqrt, a.opg:3)"),
        (["n = add(x, 1e-3)", "y = log(n)"], 0, 9, "positive numbers (log, a.opg:3)"),
        (["s = reshape(x, shape=[N])", "y = log(s)"], 1e-4, 9, "positive numbers (log, a.opg:3)"),
        (["y = relu(x)"], -9, 9, "normal numbers"),
        (["y = binary_cross_entropy(x, x, reduction=\"none\")"], 0, 1, "from 0.001 to 0.999"),
        (
            ["g = greater(x, 1.0)", "f = all(g)", 'assert f, "beyond 1"', "y = neg(x)"],
            1, 9, "numbers above 1 (an assert, 'beyond 1')",
        ),
    ],
)  # fmt: skip
def test_floats_are_in_the_domain_of_what_reads_them(tmp_path, body, low, high, what):
    program, arrays, told = drawn(tmp_path, "x: f32[N]", *body)
    assert what in told
    assert low <= arrays["x"].min() and arrays["x"].max() <= high
    assert np.isfinite(program.run("main", arrays).outputs[0]).all()


@pytest.mark.parametrize(
    ("head", "body", "high"),
    [
        ("i: i32[N], w: f32[50]", ["y = gather(w, i)"], 49),
        ("i: i64[N]", ["h = one_hot(i, classes=7)", "y = sum(h, axes=[1])"], 6),
        (
            "i: i32[N], x: f32[N, 5]",
            ['y = softmax_cross_entropy(x, i, reduction="none")'],
            4,
        ),
        ("i: u8[N], w: f32[50]", ["j = cast(i, dtype=i32)", "y = gather(w, j)"], 49),
        ("i: i32[N]", ["y = cast(i, dtype=f32)"], 9),
    ],
)
def test_indices_and_labels_exist(tmp_path, head, body, high):
    _, arrays, _ = drawn(tmp_path, head, *body)
    assert (arrays["i"].min(), arrays["i"].max()) == (0, high)


def test_it_is_followed_into_calls_whose_symbols_are_their_own(tmp_path):
    text = (
        "graph main(x: f32[N], i: i32[N]) -> f32[N], f32[N] {\n  a, b = inner(x, i)\n"
        "  return a, b\n}\n"
        "graph inner(p: f32[M], k: i32[M]) -> f32[M], f32[M] {\n  a = log(p)\n"
        "  b = gather(p, k)\n  return a, b\n}\n"
    )
    path = tmp_path / "a.opg"
    path.write_text(text)
    program = opstep.load(path)
    arrays = sources.gather(program, program.graph("main"), ["random"], {"N": 40}, 0)
    assert arrays["x"].min() > 0 and arrays["i"].max() > 9 and arrays["i"].max() < 40
    assert np.isfinite(program.run("main", arrays).outputs[0]).all()


@pytest.mark.parametrize(("body", "kept"), [("where(m, x, -inf)", 1), ("where(m, -inf, x)", 0)])
def test_a_mask_keeps_something_of_each_row(tmp_path, body, kept):
    head = "m: bool[N, 2], x: f32[N, 2]"
    program, arrays, told = drawn(
        tmp_path, head, f"s = {body}", "y = softmax(s, axis=1)", result="f32[N, 2]"
    )
    assert "a mask" in told and (arrays["m"][:, 0] == kept).all()
    assert 0 < arrays["m"][:, 1].mean() < 1
    assert np.isfinite(program.run("main", arrays).outputs[0]).all()


def test_what_nothing_suits_is_said(tmp_path):
    _, _, told = drawn(tmp_path, "x: f32[N]", "far = sub(x, 5.0)", "y = log(far)")
    assert told == "x random: normal numbers (none suits log, a.opg:3: log of a negative number)"


def test_a_range(tmp_path):
    _, arrays, told = drawn(tmp_path, "x: f32[N]", "y = neg(x)", word="x=5..6.5")
    assert told == "x 5..6.5"
    assert 5 <= arrays["x"].min() < 5.2 and 6.3 < arrays["x"].max() <= 6.5
    head = "x: i32[N]"
    cast = "y = cast(x, dtype=f32)"
    _, arrays, _ = drawn(tmp_path, head, cast, word="x=-1..1")
    assert set(arrays["x"]) == {-1, 0, 1}
    with pytest.raises(InputError, match="cannot hold"):
        drawn(tmp_path, head, cast, word="x=0.5..1")
    with pytest.raises(InputError):
        drawn(tmp_path, head, cast, word="x=3..1")


def test_the_loop_of_the_examples_takes_roots_of_what_has_one():
    program = opstep.load("examples/while.opg")
    arrays = sources.gather(program, program.graph("main"), ["random"], {"N": 50}, 0)
    root, steps = program.run("main", arrays).outputs
    np.testing.assert_allclose(root, np.sqrt(arrays["x"]), rtol=1e-5)
    assert steps < 40


def test_an_input_with_thousands_of_readers_is_asked_about_a_few(tmp_path, monkeypatch):
    from opstep.api import drawing

    asked = []
    quietly = drawing._quietly
    monkeypatch.setattr(
        drawing, "_quietly", lambda f: quietly(lambda x: asked.append(f) or f(x))
    )  # fmt: skip
    body = [f"v{k} = sqrt(x)" for k in range(3000)]
    body += [f"g{k} = greater(x, -{k}.0)" for k in range(3000)]
    drawn(tmp_path, "x: f32[N]", *body, "y = neg(x)")
    body = ["v0 = greater(x, 1.0)"]
    body += [f"v{k} = logical_and(v{k - 1}, v0)" for k in range(1, 5)]
    body += ["f = all(v4)", 'assert f, "beyond 1"', "y = neg(x)"]
    assert len(set(asked)) <= 200  # by what draws, and by what says how
    assert "numbers above 1" in drawn(tmp_path, "x: f32[N]", *body)[2]


@pytest.mark.parametrize(
    ("dtype", "word"),
    [
        ("f32", "1e38..1e39"), ("f16", "0..70000"), ("f64", "-1.7e308..1.7e308"), ("u8", "0..300"),
        ("u8", "-1..5"), ("i32", "-1e10..1e10"), ("i64", "0..1e19"), ("bool", "0..2"),
    ],
)  # fmt: skip
def test_a_range_beyond_its_type_is_refused(tmp_path, dtype, word):
    with pytest.raises(InputError, match=f"cannot hold {word}"):
        drawn(tmp_path, f"x: {dtype}[N]", "y = identity(x)", word=f"x={word}", result=f"{dtype}[N]")
