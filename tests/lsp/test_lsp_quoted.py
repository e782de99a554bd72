"""Params and states whose names stand in backquotes, in everything that an editor asks."""

from __future__ import annotations

import pytest
from lsp_client import ServerError, editor

PROGRAM = """
    # the first layer
    param ‹declared›`0.weight`: f32[4, 8] = normal(std=0.1)
    param `naïve b`: f32[4] = zeros()
    state `return`: i32[] = 0

    graph main(x: f32[N, 8]) -> f32[N, 4] {
      y = linear(x, ‹used›`0.weight`)
      z = add(y, `na‹inside›ïve b`)
      next = add(`return`, 1)
      ‹updated›`return` <- next
      return z
    }
    """


@pytest.fixture
def client():
    with editor() as found:
        found.open(PROGRAM)
        yield found


def at(client, locations) -> list[str]:
    return [client.current.at(o["range"]) for o in locations]


def test_places_and_hovers(client):
    assert client.diagnostics() == []
    assert at(client, client.references("used")) == ["`0.weight`"] * 2
    assert at(client, client.references("inside")) == ["`naïve b`"] * 2
    assert at(client, client.references("updated")) == ["`return`"] * 3
    assert at(client, client.definition("used")) == ["`0.weight`"]
    said = client.hover("used")
    assert "param `0.weight`: f32[4, 8]" in said and "the first layer" in said
    assert "Updated by `main`" in client.hover("updated")
    (symbol,) = client.request("workspace/symbol", {"query": "0.wei"})
    assert symbol["name"] == "0.weight" and at(client, [symbol["location"]]) == ["`0.weight`"]


@pytest.mark.parametrize(
    ("mark", "new", "written"),
    [
        ("used", "`0.w`", "`0.w`"),
        ("declared", "w", "w"),
        ("inside", "`layers.0.b`", "layers.0.b"),
        ("updated", "`a param`", "`a param`"),
    ],
)
def test_renames_write_backquotes_where_they_are_needed(client, mark, new, written):
    before = client.ask("prepareRename", mark)
    old = before["placeholder"]
    assert client.current.at(before["range"]) == old
    (change,) = client.ask("rename", mark, newName=new)["documentChanges"]
    assert client.current.edited(change["edits"]) == client.current.text.replace(old, written)


@pytest.mark.parametrize("new", ["0.w", "``", "`a`b`", "return", "`naïve b`", "`a\tb`", "`x`"])
def test_renames_to_what_is_no_free_name_are_refused(client, new):
    with pytest.raises(ServerError):
        client.ask("rename", "used", newName=new)


@pytest.mark.parametrize(
    ("line", "label", "after"),
    [
        ("  q = linear(x, ‹here›)", "`0.weight`", "  q = linear(x, `0.weight`)"),
        ("  q = linear(x, `0.w‹here›)", "`0.weight`", "  q = linear(x, `0.weight`)"),
        ("  q = linear(x, `‹here›`)", "`0.weight`", "  q = linear(x, `0.weight`)"),
        ("  q = linear(x, wei‹here›)", "`0.weight`", "  q = linear(x, `0.weight`)"),
        ("  `ret‹here›", "`return` <-", "  `return` <- "),
        ("  `return` <- ‹here›", "next", "  `return` <- next"),
    ],
)
def test_completion(client, line, label, after):
    client.open(PROGRAM.replace("      return z", f"    {line}\n      return z"))
    found = next(i for i in client.completion("here") if i["label"] == label)
    edited = client.current.edited([found["textEdit"]])
    assert f"\n{after}\n" in edited


def test_a_name_that_is_nearly_right_is_corrected(client):
    client.open(PROGRAM.replace("‹used›`0.weight`", "‹used›`0.weigth`"))
    (error,) = (d for d in client.diagnostics() if d["severity"] == 1)
    assert "there is no value `0.weigth`" in error["message"]
    fixes = {a["title"]: a for a in client.actions("used", "used")}
    assert "linear(x, `0.weight`)" in client.applied(fixes["Change to `0.weight`"])
