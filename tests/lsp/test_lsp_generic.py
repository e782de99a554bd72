"""Type variables in an editor: what is said of them, renamed, proposed and coloured."""

from __future__ import annotations

import pytest
from lsp_client import ServerError, editor

PROGRAM = """
    graph ‹declared›scaled<‹variable›T: flo‹family›at>(x: ‹used›T[N], by: T[]) -> T[N] {
      y = mul(x, by)
      ‹wide›wide = cast(y, dtype=f32)
      mixed‹mixed› = mul(wide, y)
      z = cast(mixed, dtype=‹attribute›T)
      return z
    }

    graph main(x: f16[8], k: f16[]) -> f16[8] {
      y = sca‹call›led(x, k)
      return y
    }
    """


@pytest.fixture(scope="module")
def client():
    with editor() as found:
        found.open(PROGRAM)
        yield found


def said(client, mark: str) -> str:
    return client.ask("hover", mark)["contents"]["value"]


def test_hover(client):
    client.open(PROGRAM)
    about = said(client, "variable")
    assert "T: float" in about
    assert "Type variable of graph `scaled`" in about
    assert "any of `f64`, `f32`, `f16`, `bf16`" in about
    assert "That of `x`, `by`." in about
    assert said(client, "used") == said(client, "attribute") == about
    assert "`f64`, `f32`, `f16`, `bf16`" in said(client, "family")
    assert "graph scaled<T: float>(x: T[N], by: T[]) -> T[N]" in said(client, "declared")
    assert "`T = f16`" in said(client, "call") and "`N = 8`" in said(client, "call")


def renamed(client, mark: str, new: str) -> str:
    (change,) = client.ask("rename", mark, newName=new)["documentChanges"]
    return client.current.edited(change["edits"])


def test_rename(client):
    client.open(PROGRAM)
    text = renamed(client, "used", "E")
    assert "graph scaled<E: float>(x: E[N], by: E[]) -> E[N] {" in text
    assert "dtype=E)" in text and "T" not in text
    for name, why in [("N", "taken"), ("f32", "would mean something else"), ("graph", "keyword")]:
        with pytest.raises(ServerError, match=why):
            client.ask("rename", "used", newName=name)
    with pytest.raises(ServerError, match="family of element types"):
        client.ask("rename", "family", newName="int")


def test_definition_and_references(client):
    client.open(PROGRAM)
    declared = client.current.position("variable")
    (link,) = client.definition("attribute")
    assert link["range"]["start"] == declared
    found = client.references("used")
    assert len(found) == 5
    assert found[0]["range"]["start"] == declared


def test_types_in_hints(client):
    client.open(PROGRAM)
    whole = client.current.range(0, len(client.current.text))
    hints = {h["label"]: h for h in client.about("inlayHint", range=whole)}
    assert ": T[N]" in hints
    assert hints[": f64|f32[N]"].get("textEdits") is None  # nothing that one could write
    assert hints[": T[N]"]["textEdits"]


HEAD = "graph scaled<T: float>(x: T[N]) -> T[N] {\n  y = relu(x)\n"


@pytest.mark.parametrize(
    ("text", "proposed"),
    [
        ("graph f<T: |", ["any", "float", "index", "int", "number"]),
        ("graph f<T: float>(x: |", ["T", "bf16", "f32"]),
        (HEAD + "  z: |\n  return y\n}\n", ["T[N]", "T", "f16"]),
        (HEAD + "  z = cast(y, dtype=|)\n  return y\n}\n", ["T", "f16"]),
    ],
    ids=["family", "input", "result", "attribute"],
)
def test_completion(client, text, proposed):
    client.open(text.replace("|", "‹here›"))
    labels = [item["label"] for item in client.completion("here")]
    assert [name for name in proposed if name not in labels] == []


def test_nothing_is_proposed_as_the_name_of_an_input(client):
    client.open("graph f<T: float>(‹here›")
    assert not client.completion("here")


def test_signature(client):
    client.open(
        HEAD + "  return y\n}\n\ngraph main(h: f16[4]) -> f16[4] {\n  y = scaled(‹here›h)\n"
    )
    found = client.ask("signatureHelp", "here")["signatures"][0]
    assert found["label"] == "scaled<T: float>(x: T[N]) -> T[N]"
    (parameter,) = found["parameters"]
    assert parameter["documentation"]["value"] == "here `f16[4]`"
    assert "Gives `f16[4]`" in found["documentation"]["value"]


def test_tokens(client):
    client.open(PROGRAM)
    legend = client.capabilities["semanticTokensProvider"]["legend"]["tokenTypes"]
    data = client.request(
        "textDocument/semanticTokens/full", {"textDocument": {"uri": client.current.uri}}
    )["data"]
    line, column, found = 0, 0, []
    for k in range(0, len(data), 5):
        down, right, length, kind, _ = data[k : k + 5]
        line, column = line + down, right if down else column + right
        text = client.current.text.split("\n")[line][column : column + length]
        found.append((text, legend[kind]))
    assert [kind for text, kind in found if text == "T"] == ["typeParameter"] * 5
    assert ("float", "type") in found
