"""Quick fixes: each is applied, and what comes out is held against the verifier."""

# ruff: noqa: E501 - programs in one piece

from __future__ import annotations

import pytest
from lsp.lsp_client import editor

from opstep.kernels.stdlib import library
from opstep.runtime.ir.parser import parse
from opstep.runtime.ir.verify import verify_with_diagnostics

# A program with an error at ‹a›, and the titles of the fixes that make it right, best first.
CASES = {
    "an op": ("graph f(x: f32[N]) -> f32[N] {\n  y = rel‹a›(x)\n  return y\n}\n", ["Change to relu"]),
    "a value": (
        "graph f(logits: f32[N]) -> f32[N] {\n  y = relu(logit‹a›)\n  return y\n}\n",
        ["Change to logits"],
    ),
    "an attribute": (
        "graph f(x: f32[N]) -> f32[N] {\n  y = leaky_relu(x, slo‹a›=0.1)\n  return y\n}\n",
        ["Change to slope"],
    ),
    "a graph of an attribute": (
        "graph f(x: f32[N]) -> f32[N] {\n  t = switch(0, x, cases=[first, secnd‹a›])\n  return t\n}\n"
        "graph first(x: f32[N]) -> f32[N] {\n  return x\n}\n"
        "graph second(x: f32[N]) -> f32[N] {\n  return x\n}\n",
        ["Change to second"],
    ),
    "a word": ("parm‹a› w: f32[4]\n", ["Change to param"]),
    "a type of a call": (
        "graph g(x: f32[N]) -> f32[N] {\n  return x\n}\n"
        "graph f(x: i32[N]) -> f32[N] {\n  y = g(x‹a›)\n  return y\n}\n",
        ["Cast x to f32"],
    ),
    "an index": (
        "graph f(x: f32[N, 4], k: f32[M]) -> f32[M, 4] {\n  y = gather(x, k‹a›, axis=0)\n"
        "  return y\n}\n",
        ["Cast k to i64"],
    ),
    "a product": (
        "graph f(x: f32[N, 4], w: f32[8, 4]) -> f32[N, 8] {\n  y = matmul(x, w‹a›)\n  return y\n}\n",
        ["Transpose w"],
    ),
    "a layer": (
        "graph f(x: f32[N, 4], w: f32[4, 8]) -> f32[N, 8] {\n  y = linear(x, w‹a›)\n  return y\n}\n",
        ["Transpose w"],
    ),
    "batches of products": (
        "graph f(x: f32[B, N, 4], w: f32[B, 8, 4]) -> f32[B, N, 8] {\n  y = matmul(x, w‹a›)\n"
        "  return y\n}\n",
        ["Transpose w"],
    ),
    "a return": ("graph f(x: f32[N]) -> f32[N] {\n  y = relu(x)\n}‹a›\n", ["Add return y"]),
    "returns": (
        "graph f(x: f32[N]) -> f32[N], i32[] {\n  a = relu(x)\n  b = exp(a)\n  n = add(1, 2)\n}‹a›",
        ["Add return b, n"],
    ),
    "a return on one line": ("graph f(x: f32[N]) -> f32[N] { }‹a›\n", ["Add return x"]),
    "a returned type": (
        "graph f(x: f32[N]) -> i32[N] {\n  y = relu(x)\n  return y‹a›\n}\n",
        ["Cast y to i32", "Declare that f returns f32[N]"],
    ),
    "a returned shape": (
        "graph f(x: f32[N, 4]) -> i32[], f32[N] {\n  n = add(1, 2)\n  y = relu(x)\n  return n, y‹a›\n}\n",
        ["Declare that f returns f32[N, 4]"],
    ),
    "a shape": (
        "graph f(x: f32[8, 6]) -> f32[48] {\n  h = reshape(x, shape=[4, 10]‹a›)\n  y = flatten(h, start=0)\n  return y\n}\n",
        ["Change shape to [4, 12]"],
    ),
    "a shape with symbols": (
        "graph f(x: f32[N, 8, 2]) -> f32[N, 16] {\n  y = reshape(x, shape=[N, 8]‹a›)\n  return y\n}\n",
        ["Change shape to [N, 16]"],
    ),
    "an axis": (
        "graph f(x: f32[N, 4]) -> f32[N, 4] {\n  y = softmax(x, axis=2‹a›)\n  return y\n}\n",
        ["Change axis to 1, of size 4", "Change axis to 0, of size N"],
    ),
    "an axis from the end": (
        "graph f(x: f32[N, 4]) -> f32[N, 4] {\n  y = softmax(x, axis=-3‹a›)\n  return y\n}\n",
        ["Change axis to -2, of size N", "Change axis to -1, of size 4"],
    ),
    "axes": (
        "graph f(x: f32[N, 4]) -> f32[] {\n  y = sum(x, axes=[0, 2]‹a›)\n  return y\n}\n",
        ["Change axes to [0, 1]"],
    ),
    "an axis along which they differ": (
        "graph f(x: f32[4, 2], z: f32[4, 3]) -> f32[4, 5] {\n  y = concat(x, z‹a›, axis=0)\n  return y\n}\n",
        ["Change axis to 1, of size 2"],
    ),
    "an update": (
        "state s: i64[] = 0\ngraph f() {\n  n = add(s, 1)\n  m = cast(n, dtype=i32)\n  s <- m‹a›\n}\n",
        ["Cast m to i64"],
    ),
    "an annotation": (
        "graph f(x: f32[N, 8]) -> f32[N, 8] {\n  y: f32[N‹a›] = relu(x)\n  return y\n}\n",
        ["Write f32[N, 8]", "Remove the type of y"],
    ),
    "a result without a name": (
        "graph g(x: f32[N]) -> f32[N] {\n  return x\n}\n"
        "graph f(x: f32[N]) -> f32[N] {\n  g‹a›(x)\n  return x\n}\n",
        ["Name the result: y"],
    ),
    "results without names": (
        "graph f(y0: f32[8]) -> f32[8] {\n  split‹a›(y0, sections=2)\n  return y0\n}\n",
        ["Name the 2 results: y0_2, y1"],
    ),
    "a name that is taken": (
        "graph f(x: f32[N]) -> f32[N] {\n  y = relu(x)\n  y‹a› = exp(y)\n  return y\n}\n",
        ["Rename to y2"],
    ),
    "a graph that is there": (
        "graph f() {\n}\ngraph f‹a›() {\n}\n",
        ["Rename to f2"],
    ),
    "a condition": (
        "graph f(x: f32[N]) {\n  fine = isfinite(x)\n  assert fine‹a›, \"not fine\"\n}\n",
        ["Assert all of fine", "Assert any of fine"],
    ),
    "a param": (
        "# Above.\ngraph f(x: f32[N, 4]) -> f32[N, 4] {\n  y = linear(x, conv.w‹a›)\n  return y\n}\n",
        ["Declare param conv.w: f32[4, 4]"],
    ),
}  # fmt: skip


def errors(text: str) -> list[str]:
    _, found = verify_with_diagnostics(parse(text), library=library())
    return [d.message for d in found]


@pytest.fixture(scope="module")
def client():
    with editor() as made:
        yield made


@pytest.mark.parametrize("name", CASES)
def test_each_fix_makes_the_program_right(client, name):
    text, titles = CASES[name]
    client.open(text, f"file:///{abs(hash(name))}.opg")
    first = next(d for d in client.diagnostics() if d["severity"] == 1)
    actions = [a for a in client.actions("a") if a["diagnostics"][0] == first]
    assert [a["title"] for a in actions][: len(titles)] == titles
    for action in actions[: len(titles)]:
        assert action["kind"] == "quickfix"
        assert errors(client.applied(action)) == []
    unsure = ("a param", "a returned shape", "an axis along which they differ")
    assert actions[0].get("isPreferred") or name in unsure


def test_several_names_are_offered_and_the_nearest_first(client):
    client.open("graph f(x: f32[N]) -> f32[N] {\n  y = rellu‹a›(x)\n  return y\n}\n")
    actions = client.actions("a")
    assert [a["title"] for a in actions] == ["Change to relu", "Change to prelu", "Change to elu"]
    assert [a.get("isPreferred") for a in actions] == [True, None, None]
    assert errors(client.applied(actions[0])) == []


def test_no_fix_is_offered_that_does_not_help(client):
    client.open("graph f(x: f32[N, 4], w: f32[5, 6]) -> f32[N, 5] {\n  y = matmul(x, w‹a›)\n}\n")
    assert not [a for a in client.actions("a") if "Transpose" in a["title"]]


def test_what_nothing_uses_can_be_removed(client):
    client.open("graph f(x: f32[N]) -> f32[N] {\n  y‹a› = relu(x)\n  return x\n}\n")
    (found,) = client.diagnostics()
    assert (found["severity"], found["code"], found["tags"]) == (2, "unused", [1])
    removed, renamed = client.actions("a")
    assert client.applied(removed) == "graph f(x: f32[N]) -> f32[N] {\n  return x\n}\n"
    assert "  _y = relu(x)\n" in client.applied(renamed)


def test_all_that_is_sure_is_fixed_at_once(client):
    client.open(
        "graph f‹a›(x: f32[N]) -> f32[N] {\n  y = reciproca(x)\n  z = leaky_relu(y, slo=0.5)\n"
        "  w = rellu(z)\n  return z\n}\n"
    )
    assert client.actions("a") == []
    (action,) = client.actions("a", only=["source.fixAll"])
    assert action["kind"] == "source.fixAll"
    fixed = client.applied(action)
    assert "y = reciprocal(x)" in fixed and "slope=0.5" in fixed
    assert "w = rellu(z)" in fixed  # more than one name is near
    client.open("graph f‹a›() {\n}\n")
    assert client.actions("a", only=["source.fixAll"]) == []
    assert client.actions("a", only=["refactor"]) == []
