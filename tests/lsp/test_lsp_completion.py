"""Completion: what is proposed where, and in which order."""

import re

import pytest
from lsp_client import editor

from opstep.runtime.ir.parser import parse
from opstep.runtime.ir.verify import verify

FRAME = """param w: f32[10, 64] = normal(std=0.1)
param b: f32[10] = zeros()
state step: i32[] = 0

graph scores(x: f32[N, 64], k: i32[]) -> f32[N, 10] {
  y = linear(x, w, b)
  flags = less(y, 1.0)
  fine = all(flags)
LINE
  late = relu(y)
  return y
}

graph same(x: f32[N, 10]) -> f32[N, 10] {
  return x
}

graph positive(x: f32[N, 10]) -> bool[] {
  least = min(x)
  found = greater(least, 0.0)
  return found
}

graph count(z: i32[]) {
  step <- z
}
"""


@pytest.fixture(scope="module")
def client():
    with editor() as found:
        yield found


def proposed(client, text, **more):
    """The items at the mark, in the order in which an editor shows them."""
    client.open(text.replace("|", "‹here›"))
    return sorted(client.completion("here", **more), key=lambda item: item["sortText"])


def labels(client, line, **more):
    return [i["label"] for i in proposed(client, FRAME.replace("LINE", line), **more)]


def accepted(client, text, label):
    """The text once a proposal is taken, tab stops filled with their placeholders."""
    item = next(i for i in proposed(client, text) if i["label"] == label)
    new = client.current.edited([item["textEdit"]])
    for _ in range(3):
        new = re.sub(r"\$\{\d+:([^${}]*)\}|\$\{\d+\|([^,|]*)[^|]*\|\}|\$\{?\d+\}?",
                     lambda m: (m[1] or m[2] or "").replace("\\", ""), new)  # fmt: skip
    return new


@pytest.mark.parametrize(
    "line, first, last",
    [
        ("  q = relu(|)", ["y", "k", "x", "w", "b", "step"], ["fine", "flags"]),
        ("  q = linear(x, |)", ["x", "w"], ["fine", "flags", "y", "k", "b", "step"]),
        ("  q = linear(x, w, |)", ["b"], ["fine", "flags", "y", "k", "x", "w", "step"]),
        ("  q = linear(|, w, b)", ["x", "w"], ["y", "k", "b", "step"]),
        ("  q = linear(x, |\n  # why", ["x", "w"], ["fine", "flags", "y", "k", "b", "step"]),
        ("  q = gather(y, |", ["k", "step"], ["fine", "flags", "y", "x", "w", "b"]),
        ("  q = where(|", ["fine", "flags"], ["y", "k", "x", "w", "b", "step"]),
        ("  q = scores(|", ["x", "w"], ["fine", "flags", "y", "k", "b", "step"]),
        ("  q = scores(x, |", ["k", "step"], ["fine", "flags", "y", "x", "w", "b"]),
        ("  q = cond(|", ["fine"], ["flags", "y", "k", "x", "w", "b", "step"]),
        ("  step <- |", ["k", "step"], ["fine", "flags", "y", "x", "w", "b"]),
        ("  assert |", ["fine"], ["flags", "y", "k", "x", "w", "b", "step"]),
        ("  return |", ["y"], ["fine", "flags", "k", "x", "w", "b", "step"]),
        ("  q = cond(fine, y, then=|", ["same"], ["scores", "positive"]),
        ("  q = while(y, body=|", ["same"], ["scores", "positive"]),
        ("  q = while(y, test=|", ["positive"], ["scores", "same"]),
        ("  q = while(y, body=same, test=|)", ["positive"], ["scores", "same"]),
        ("  q = switch(k, y, cases=[same, |", ["same"], ["positive"]),
        ("  q = batch_norm(y, b, b, b, |", ["b"], ["fine", "flags", "k", "x", "w", "step"]),
    ],
)
def test_what_type_checks_comes_first(client, line, first, last):
    found = labels(client, line)
    known = [label for label in found if label in first or label in last]
    assert known[: len(first)] == first
    assert sorted(known[len(first) :]) == sorted(last)


@pytest.mark.parametrize("line", ["  q = relu(|", "  step <- |", "  assert |", "  return |"])
def test_what_is_defined_below_is_not_proposed(client, line):
    assert "late" not in labels(client, line)


@pytest.mark.parametrize(
    "line, some",
    [
        ("  q = softmax(y, |", {"axis="}),
        ("  q = softmax(y, ax|", {"axis="}),
        ("  q = softmax(y, ax|is=1)", {"axis="}),
        ("  q = conv2d(y, w, stride=[1, 1], |", {"padding=", "dilation=", "groups="}),
        ("  q = reshape(y, |", {"shape="}),
        ("  q = cast(y, dtype=|)", {"f32", "bf16", "bool", "i64"}),
        ("  q = sum(y, keepdims=|", {"true", "false"}),
        ('  q = gelu(y, approximate="|")', {'"none"', '"tanh"'}),
        ("  q = gelu(y, approximate=|", {'"none"', '"tanh"'}),
        ('  q = mse_loss(y, y, reduction="s|', {'"sum"'}),
        ("  q = reshape(y, shape=[|", {"N"}),
        ("  q = reshape(y, shape=[N*2, |", {"N"}),
        ("  q = one_hot(k, classes=|", {"N"}),
        ("  q: f32[|", {"N"}),
        ("  q: |", {"f32", "f32[N, 10]", "bool[]"}),
        ("  q: | = greater(y, 1.0)", {"bool[N, 10]"}),
        ("  |", {"assert", "w <-", "step <-", "relu", "same", "count", "attention", "while"}),
        ("  q = |", {"relu", "same", "attention", "cond", "switch"}),
        ("  q = re|", {"relu", "reshape", "reciprocal"}),
        ("  q = concat(y,\n    fl|", {"flags"}),
        ("  q = softmax(\n    y,\n    # why\n    ax|", {"axis="}),
        ("  q = relu(\n  r = sig|", {"sigmoid"}),
        ("  cou|", {"count"}),
        ("  count(|", {"k", "step"}),
        ("  q, r = top_k(y, |", {"k="}),
    ],
)  # fmt: skip
def test_proposals_of_a_place(client, line, some):
    assert some <= set(labels(client, line))


@pytest.mark.parametrize(
    "line",
    ["  # q = |", "  q = relu(y)  # re|", '  assert fine, "re|"', '  q = relu(y) at "mo|"',
     "  q |", "  q = relu |", "  q = relu(y) |", "  assert fine, |", "  q = softmax(y, axis=-|",
     "  q = 12|", "  q, |"],
)  # fmt: skip
def test_where_nothing_can_be_proposed(client, line):
    assert labels(client, line) == []


@pytest.mark.parametrize("given", ["axis=1, ", "keepdims=true, axis=0, "])
def test_attributes_that_are_given_are_not_proposed_again(client, given):
    assert "axis=" not in labels(client, f"  q = argmax(y, {given}|)")


def test_operands_are_not_proposed_behind_attributes(client):
    assert labels(client, "  q = argmax(y, axis=1, |)") == ["keepdims="]


def test_no_attribute_before_all_operands(client):
    assert "transpose_a=" not in labels(client, "  q = matmul(|")
    assert "transpose_a=" in labels(client, "  q = matmul(y, w, |")


def test_a_needed_attribute_comes_before_those_with_defaults(client):
    found = labels(client, "  q = cumsum(y, |")
    assert found.index("axis=") < found.index("exclusive=")


@pytest.mark.parametrize(
    "text, some",
    [
        ("|", {"graph", "param", "state"}),
        ("pa|", {"param"}),
        (FRAME.replace("LINE\n", "") + "\n|", {"graph", "param", "state"}),
        ("param w: |", {"f32", "i64", "bool"}),
        ("param w: f32[3, 4] = |", {"zeros", "normal", "0.0", "uniform", "iota"}),
        ("param w: f32[3, 4] = no|", {"normal"}),
        ("param w: f32[3, 4] = normal(|", {"std=", "mean=", "seed="}),
        ("state s: bool[] = |", {"true", "false"}),
        ("graph f(x: |", {"f32", "i32"}),
        ("graph f(x: f32[N], y: f32[|", {"N"}),
        ("graph f(\n  x: f32[N, M],\n  y: f32[|\n) {\n}\n", {"N", "M"}),
        ("graph f(x: f32[N, 8]) -> | {\n  y = sum(x, axes=[1])\n  return y\n}\n", {"f32[N]"}),
        ("graph f(x: f32[N]) -> f32[N] { return | }", {"x"}),
        ("graph f(x f32[N]) {\n  z = relu(x)\n  y = add(|\n}\n", {"z"}),
    ],
)
def test_outside_of_statements(client, text, some):
    assert some <= {item["label"] for item in proposed(client, text)}


def test_an_initialiser_has_no_shape_and_no_operands(client):
    found = [i["label"] for i in proposed(client, "param w: f32[3] = normal(|")]
    assert not {"shape=", "dtype=", "w"} & set(found)
    names = {i["label"] for i in proposed(client, "param w: f32[3] = |")}
    assert "relu" not in names and "eye" not in names  # eye makes matrices only


@pytest.mark.parametrize(
    "line, label",
    [
        ("  |", "relu"), ("  |", "same"), ("  |", "sort"), ("  |", "count"), ("  |", "conv2d"),
        ("  re|", "relu"), ("  q = |", "same"), ("  q = rel|", "relu"), ("  q = rel|u(y)", "relu"),
        ("  q = argmax(y, |)", "axis="), ("  q = argmax(y, ax|is=1)", "axis="),
        ("  q = argmax(y, |)", "keepdims="), ('  q = gelu(y, approximate="|")', '"tanh"'),
        ("  q = relu(|)", "y"), ("  q: | = relu(y)", "f32[N, 10]"),
        ("  q: f|32[N] = relu(y)", "f64"), ("  # \U0001f600 of é\n  q = re|lu(y)", "reshape"),
        ('  assert fine, "\U0001f600"\r\n  q = relu(|)\r', "y"),
    ],
)  # fmt: skip
def test_what_is_inserted_is_in_the_language(client, line, label):
    parse(accepted(client, FRAME.replace("LINE", line), label))


@pytest.mark.parametrize("label", ["graph", "param", "state"])
def test_an_item_from_a_snippet_is_right(client, label):
    verify(parse(accepted(client, "|", label)))


def test_a_statement_gets_a_name_that_is_not_taken(client):
    text = accepted(client, FRAME.replace("LINE", "  |"), "sort")
    assert "  values, indices = sort(x)" in text
    text = accepted(client, FRAME.replace("LINE", "  |"), "relu")
    assert "  y1 = relu(x)" in text


def test_a_client_without_snippets_gets_plain_text():
    with editor(capabilities={}) as client:
        for item in proposed(client, FRAME.replace("LINE", "  |")):
            assert "$" not in item["textEdit"]["newText"]
            assert item.get("insertTextFormat", 1) == 1
        found = {i["label"]: i for i in proposed(client, FRAME.replace("LINE", "  q = rel|"))}
        assert found["relu"]["textEdit"]["newText"] == "relu("


@pytest.mark.parametrize(
    "line, sign, comes",
    [
        ("  |", " ", False), ("  q =|", "=", False), ("  q = |", " ", True),
        ("  q = relu(|", "(", True), ("  q = add(y, |", " ", True),
        ("  q = softmax(y, axis=|", "=", True), ("  q = add(y,\n    |", " ", False),
        ("  q = reshape(y, shape=[|", "[", True), ("  return |", " ", True), ("  q |", " ", False),
    ],
)  # fmt: skip
def test_a_sign_brings_the_list_up_only_where_it_helps(client, line, sign, comes):
    context = {"triggerKind": 2, "triggerCharacter": sign}
    assert bool(labels(client, line, context=context)) == comes


@pytest.mark.parametrize(
    "line, label, words",
    [
        ("  q = |", "softmax", ["softmax(x: F, *, axis: int = -1)", "exp"]),
        ("  q = |", "same", ["graph same(x: f32[N, 10]) -> f32[N, 10]"]),
        ("  q = |", "attention", ["graph attention<T: float>("]),
        ("  q = softmax(y, |", "axis=", ["an integer", "1 by default"]),
    ],
)
def test_documentation_is_resolved(client, line, label, words):
    items = proposed(client, FRAME.replace("LINE", line))
    item = next(i for i in items if i["label"] == label)
    assert "documentation" not in item
    text = client.request("completionItem/resolve", item)["documentation"]["value"]
    for word in words:
        assert word in text


def test_signs_end_a_value_and_are_typed(client):
    item = next(i for i in proposed(client, FRAME.replace("LINE", "  q = relu(|)"))
                if i["label"] == "y")  # fmt: skip
    assert set(item["commitCharacters"]) == {",", ")"}


def test_dotted_names_are_replaced_whole(client):
    text = (
        "param a.w: f32[8] = zeros()\n"
        "graph g(x: f32[8]) -> f32[8] {\n  y = add(x, a.|)\n  return y\n}\n"
    )
    assert "add(x, a.w)" in accepted(client, text, "a.w")


def test_a_long_graph_is_proposed_in_part(client):
    body = "\n".join(f"  v{k} = relu(x)" for k in range(3000))
    text = f"graph long(x: f32[N]) -> f32[N] {{\n{body}\n  y = relu(|)\n  return y\n}}\n"
    client.open(text.replace("|", "‹here›"))
    found = client.ask("completion", "here")
    assert found["isIncomplete"]
    assert found["items"][0]["label"] == "v2999"


@pytest.mark.parametrize("size", range(0, 400, 7))
def test_no_place_of_a_broken_text_breaks_it(client, size):
    text = FRAME.replace("LINE", "  q = softmax(y, axis=")
    for end in range(size, size + 7):
        client.open(text[:end] + "‹here›" + text[end + size % 11 :])
        client.completion("here")
        client.ask("signatureHelp", "here")
