"""Outlines, symbols of folders, and the hierarchy of calls."""

from __future__ import annotations

from urllib.parse import urlparse

import pytest
from lsp_client import editor

PROGRAM = """
    param conv.w: f32[4, 8] = normal(std=0.1)
    state count: i32[] = 0

    graph main(x: f32[N, 8], u: f32[]) -> f32[N, 4], f32[] {
      ‹in main›y = sco‹scores›res(x)
      z = scores(x)
      r = while(u, test=is_large, body=halve)
      n = add(count, 1)
      count <- n
      return y, r
    }

    graph scores(x: f32[N, 8]) -> f32[N, 4] {
      a = linear(x, conv.w)
      b, c = split(a, sections=2, axis=1)
      d = gelu_of(a)
      return a
    }

    graph gelu_of(x: f32[N, 4]) -> f32[N, 4] {
      wide = reshape(x, shape=[N, 2, 2])
      y = layer_norm(x)
      return y
    }

    graph is_large(x: f32[]) -> bool[] {
      y = greater(x, 1.0)
      return y
    }

    graph ha‹halve›lve(x: f32[]) -> f32[] {
      y = mul(x, 0.5)
      small = is_large(y)
      r = cond(small, y, then=halve, else=same)
      return r
    }

    graph same(x: f32[]) -> f32[] {
      return x
    }
    """


@pytest.fixture
def client():
    with editor() as found:
        found.open(PROGRAM)
        yield found


def test_the_outline_has_everything_that_has_a_name(client):
    found = client.about("documentSymbol")
    assert [s["name"] for s in found] == [
        "conv.w", "count", "main", "scores", "gelu_of", "is_large", "halve", "same",
    ]  # fmt: skip
    by_name = {s["name"]: s for s in found}
    assert by_name["conv.w"]["detail"] == "param f32[4, 8]"
    assert by_name["main"]["detail"] == "(x: f32[N, 8], u: f32[]) -> f32[N, 4], f32[]"
    children = by_name["scores"]["children"]
    assert [(c["name"], c["detail"]) for c in children] == [
        ("x", "f32[N, 8]"),
        ("a", "f32[N, 4]"),
        ("b", "f32[N, 2]"),
        ("c", "f32[N, 2]"),
        ("d", "f32[N, 4]"),
    ]
    for symbol in (*found, *(c for s in found for c in s.get("children", ()))):
        assert client.current.at(symbol["selectionRange"]) == symbol["name"]
        assert symbol["name"] in client.current.at(symbol["range"])


def test_the_outline_of_a_broken_text_is_what_can_be_read(client):
    client.rewrite("graph f(x: f32[N]) -> f32[N] {\n  y = relu(x\n  z = relu(x)\n}\nparam p f32\n")
    (graph,) = client.about("documentSymbol")
    assert graph["name"] == "f" and [c["name"] for c in graph["children"]] == ["x", "z"]
    client.rewrite("")
    assert client.about("documentSymbol") == []


# --- folders --------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "a.opg").write_text("graph train_step() {\n}\n")
    (tmp_path / "deep" / "b.opg").write_text("param train.w: f32[2]\ngraph other() {\n}\n")
    (tmp_path / "node_modules" / "c.opg").write_text("graph train_hidden() {\n}\n")
    return tmp_path


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("train", ["train.w", "train_step"]),
        ("TRAIN", ["train.w", "train_step"]),
        ("step", ["train_step"]),
        ("tsp", ["train_step"]),
        ("", ["other", "train.w", "train_step"]),
        ("absent", []),
    ],
)
def test_symbols_of_all_files_are_found_by_letters(folder, query, names):
    with editor(folder) as client:
        found = client.request("workspace/symbol", {"query": query})
        assert sorted(s["name"] for s in found) == names
        for symbol in found:
            assert symbol["containerName"] in ("a.opg", "b.opg")


def test_better_matches_come_first(folder):
    (folder / "d.opg").write_text(
        "graph restep() {\n}\ngraph step_up() {\n}\ngraph s_t_e_p() {\n}\n"
    )
    with editor(folder) as client:
        found = client.request("workspace/symbol", {"query": "step"})
        assert [s["name"] for s in found] == ["step_up", "restep", "train_step", "s_t_e_p"]


def test_what_is_typed_goes_before_what_is_on_disk(folder):
    with editor(folder) as client:
        client.open("graph renamed() {\n}\n", (folder / "a.opg").as_uri())
        names = [s["name"] for s in client.request("workspace/symbol", {"query": ""})]
        assert sorted(names) == ["other", "renamed", "train.w"]
        (folder / "deep" / "b.opg").unlink()
        (folder / "deep" / "new.opg").write_text("graph fresh() {\n}\n")
        names = [s["name"] for s in client.request("workspace/symbol", {"query": ""})]
        assert sorted(names) == ["fresh", "renamed"]


# --- calls ----------------------------------------------------------------------------------------


def item(client, mark):
    (found,) = client.ask("prepareCallHierarchy", mark)
    return found


def calls(client, direction: str, of) -> dict[str, list[str]]:
    key = "from" if direction == "incoming" else "to"
    found = client.request(f"callHierarchy/{direction}Calls", {"item": of})
    assert all(call[key]["name"] for call in found)
    return {call[key]["name"]: [client.current.at(r) for r in call["fromRanges"]] for call in found}


def test_calls_go_through_control_flow(client):
    assert calls(client, "incoming", item(client, "scores")) == {"main": ["scores", "scores"]}
    assert calls(client, "incoming", item(client, "halve")) == {
        "main": ["halve"],
        "halve": ["halve"],
    }
    main = item(client, "in main")  # on no graph's name: the graph around it
    assert main["name"] == "main"
    assert calls(client, "outgoing", main) == {
        "scores": ["scores", "scores"], "is_large": ["is_large"], "halve": ["halve"],
    }  # fmt: skip
    assert calls(client, "outgoing", item(client, "halve")) == {
        "is_large": ["is_large"], "halve": ["halve"], "same": ["same"],
    }  # fmt: skip


def test_an_item_leads_on(client):
    (main,) = client.request("callHierarchy/incomingCalls", {"item": item(client, "scores")})
    assert calls(client, "incoming", main["from"]) == {}
    found = client.request("callHierarchy/outgoingCalls", {"item": item(client, "scores")})
    (gelu,) = [c["to"] for c in found]
    assert calls(client, "incoming", gelu) == {"scores": ["gelu_of"]}
    assert client.current.at(gelu["selectionRange"]) == "gelu_of"


def test_calls_lead_into_the_library(client):
    client.open("""
        graph main(x: f32[B, L, 8]) -> f32[B, L, 8] {
          y = atten‹library›tion(x, x, x)
          return y
        }
        """, "file:///programs/other.opg")  # fmt: skip
    found = item(client, "library")
    assert urlparse(found["uri"]).path.endswith("attention.opg")
    assert "standard library" in found["detail"]
    incoming = client.request("callHierarchy/incomingCalls", {"item": found})
    names = {call["from"]["name"]: call["from"]["uri"] for call in incoming}
    assert names["main"] == "file:///programs/other.opg"


def test_no_graph_has_no_calls(client):
    client.rewrite("‹here›param w: f32[2]\n")
    assert not client.ask("prepareCallHierarchy", "here")


def test_the_outline_of_a_very_long_file_has_no_values():
    body = "".join(f"  v{k} = relu(x)\n" for k in range(6_000))
    with editor() as client:
        client.open(f"graph main(x: f32[N]) -> f32[N] {{\n{body}  return x\n}}\n")
        (graph,) = client.about("documentSymbol")
        assert graph["name"] == "main" and not graph["children"]
        assert graph["range"]["end"]["line"] == 6_002
