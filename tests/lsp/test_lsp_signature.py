"""Signature help: the form of the call under way, and the argument that is being written."""

import pytest
from lsp_client import editor

FRAME = """param w: f32[10, 64] = normal(std=0.1)
param b: f32[10] = zeros()

graph scores(x: f32[N, 64]) -> f32[N, 10] {
  y = linear(x, w, b)
LINE
  return y
}
"""


@pytest.fixture(scope="module")
def client():
    with editor() as found:
        yield found


def signature(client, line):
    client.open(FRAME.replace("LINE", line).replace("|", "‹here›"))
    return client.ask("signatureHelp", "here")


def active(found):
    """The text of the active parameter."""
    one = found["signatures"][0]
    k = one.get("activeParameter")
    if k is None:
        return None
    start, end = one["parameters"][k]["label"]
    return one["label"][start:end]


@pytest.mark.parametrize(
    "line, parameter",
    [
        ("  q = linear(|", "x: N"),
        ("  q = linear(|)", "x: N"),
        ("  q = linear(x, |", "w: N"),
        ("  q = linear(x, w, |", "b: N?"),
        ("  q = linear(x, w, b, |", "transpose_w: bool"),
        ("  q = softmax(y, |", "axis: int"),
        ("  q = softmax(y, axis=|", "axis: int"),
        ("  q = conv2d(y, w, padding=[1, |", "padding: ints"),
        ("  q = conv2d(y, w, b, stride=[1, 1], |", "padding: ints"),
        ("  q = concat(y, y, y|", "xs: T*"),
        ("  q = add(x|, y)", "a: N"),
        ("  q = add(\n    x,\n    |", "b: N"),
        ("  q = scores(|", "x: f32[N, 64]"),
        ("  scores(|", "x: f32[N, 64]"),
        ("  q = cond(y, y, then=|", "then: graph"),
    ],
)
def test_the_argument_that_is_written(client, line, parameter):
    assert active(signature(client, line)) == parameter


@pytest.mark.parametrize("line", ["  q = |", "  q = rellu(|", "  q = relu(y)|", "  # relu(|"])
def test_no_call_no_help(client, line):
    assert signature(client, line) is None


def test_an_initialiser_has_help(client):
    client.open("param w: f32[8] = normal(std=‹here›")
    assert active(client.ask("signatureHelp", "here")) == "std: float"


@pytest.mark.parametrize(
    "line, words",
    [
        ("  q = softmax(y, |", ["softmax", "Gives `f32[N, 10]`"]),
        ("  q = linear(x, w|", ["Gives `f32[N, 10]`"]),
        ("  q = scores(x|", ["Gives `f32[N, 10]`"]),
    ],
)
def test_the_text_says_what_it_gives(client, line, words):
    one = signature(client, line)["signatures"][0]
    text = one["label"] + one["documentation"]["value"]
    assert all(word in text for word in words)


def test_parameters_say_what_they_are(client):
    one = signature(client, "  q = gather(y, |")["signatures"][0]
    notes = [p["documentation"]["value"] for p in one["parameters"]]
    assert notes == ["any tensor", "indices, i32 or i64", "an integer, 0 by default"]


def test_symbols_of_a_graph_are_filled_in(client):
    text = FRAME.replace("LINE", "") + (
        "graph pair(a: f32[M], b: f32[M]) { }\ngraph g(x: f32[4]) {\n  pair(x, ‹here›\n}\n"
    )
    client.open(text)
    one = client.ask("signatureHelp", "here")["signatures"][0]
    assert [p.get("documentation", {}).get("value") for p in one["parameters"]] == [
        "here `f32[4]`", "here `f32[4]`",
    ]  # fmt: skip


def test_what_comes_by_itself_is_a_line_and_a_key_shows_the_rest(client):
    client.open(FRAME.replace("LINE", "  q = softmax(‹here›"))
    typed = {"triggerKind": 2, "triggerCharacter": "(", "isRetrigger": False}
    (short,) = client.ask("signatureHelp", "here", context=typed)["signatures"]
    assert short["label"].startswith("softmax(") and "documentation" not in short
    assert not any("documentation" in p for p in short["parameters"])
    asked = client.ask("signatureHelp", "here", context={"triggerKind": 1, "isRetrigger": False})
    (full,) = asked["signatures"]
    assert "documentation" in full and "documentation" in full["parameters"][0]
    typed |= {"isRetrigger": True, "activeSignatureHelp": asked}
    assert client.ask("signatureHelp", "here", context=typed)["signatures"] == [full]
