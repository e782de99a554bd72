"""``opstep/graph``: nodes and edges of the data flow, also of what has errors."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from lsp_client import ServerError, editor

URI = "file:///programs/model.opg"
TEXT = """
param w: f32[8, 4] = normal(std=0.5)
state runs: i32[] = 0

# Above the graph.
graph main(x: f32[N, 8], y: f32[4]) -> f32[N, 4], i32[] {
  h = matmul(x, w)
  b = add(h, y)
  a, c = both(
    b,
    2.5,
  )
  ok = is_fine(c)
  assert ok, "not fine"
  far, turns = while(a, 0, test=more, body=halve)
  next = add(runs, 1)
  runs <- next
  return far, turns
}

graph both(v: f32[N, 4], k: f32[]) -> f32[N, 4], f32[N, 4] {
  p = mul(v, k)
  q = add(p, 1.0)
  return p, q
}

graph is_fine(v: f32[N, 4]) -> bool[] {
  fine = isfinite(v)
  good = all(fine)
  return good
}

graph more(v: f32[N, 4], t: i32[]) -> bool[] {
  m = less(t, 3)
  return m
}

graph halve(v: f32[N, 4], t: i32[]) -> f32[N, 4], i32[] {
  u = mul(v, 0.5)
  s = add(t, 1)
  return u, s
}
"""


@pytest.fixture(scope="module")
def client():
    with editor() as client:
        client.open(TEXT)
        yield client


def ask(client, **params):
    return client.request("opstep/graph", {"uri": URI, **params})


@pytest.fixture(scope="module")
def main(client):
    return ask(client, graph="main")


def node(graph, name, kind=None):
    (found,) = [n for n in graph["nodes"] if n["name"] == name and kind in (None, n["kind"])]
    return found


def edges(graph, to):
    """Kind and name of the source, value, type and place of the edges that lead to a node."""
    by_id = {n["id"]: n for n in graph["nodes"]}
    return [(by_id[e["from"]]["kind"], by_id[e["from"]]["name"], e["value"], e["type"], e["place"])
            for e in graph["edges"] if e["to"] == to["id"]]  # fmt: skip


def test_each_statement_is_a_node_of_its_kind(main):
    assert [(n["kind"], n["name"]) for n in main["nodes"]] == [
        ("input", "x"), ("input", "y"),
        ("op", "h"), ("param", "w"), ("op", "b"), ("call", "a, c"), ("call", "ok"),
        ("assert", "ok"), ("control", "far, turns"), ("op", "next"), ("state", "runs"),
        ("update", "runs"), ("return", "far, turns"),
    ]  # fmt: skip
    assert main["graph"] == "main" and main["inputs"] == ["x", "y"]
    assert main["graphs"] == ["main", "both", "is_fine", "more", "halve"]
    assert len({n["id"] for n in main["nodes"]}) == len(main["nodes"])


def test_values_have_their_types(main):
    assert node(main, "h")["values"] == [{"name": "h", "type": "f32[N, 4]"}]
    both = [{"name": "a", "type": "f32[N, 4]"}, {"name": "c", "type": "f32[N, 4]"}]
    assert node(main, "a, c")["values"] == both
    assert node(main, "w")["values"] == [{"name": "w", "type": "f32[8, 4]"}]
    assert node(main, "far, turns", "return")["values"] == []


def test_edges_lead_from_what_makes_a_value_to_each_use(main):
    assert edges(main, node(main, "h")) == [
        ("input", "x", "x", "f32[N, 8]", 0), ("param", "w", "w", "f32[8, 4]", 1)
    ]  # fmt: skip
    assert edges(main, node(main, "far, turns", "control")) == [
        ("call", "a, c", "a", "f32[N, 4]", 0)
    ]
    assert edges(main, node(main, "ok", "assert")) == [("call", "ok", "ok", "bool[]", 0)]
    assert edges(main, node(main, "runs", "update")) == [("op", "next", "next", "i32[]", 0)]
    assert [e[2:] for e in edges(main, node(main, "far, turns", "return"))] == [
        ("far", "f32[N, 4]", 0), ("turns", "i32[]", 1)
    ]  # fmt: skip


def test_places_count_literals_too():
    """So that an operand's edge finds the input of the graph that is called."""
    text = """
    graph main(x: f32[N]) -> f32[N] {
      y = pair(2.0, x)
      return y
    }
    graph pair(a: f32[], b: f32[N]) -> f32[N] {
      c = mul(a, b)
      return c
    }
    """
    with editor() as client:
        client.open(text)
        graph = ask(client, graph="main")
        (edge,) = edges(graph, node(graph, "y", "call"))
        assert edge[2:] == ("x", "f32[N]", 1)
        assert node(graph, "y", "call")["args"] == ["2.0"]


def test_attributes_literals_and_calls_are_told(main):
    assert node(main, "a, c")["args"] == ["2.5"] and node(main, "a, c")["calls"] == ["both"]
    control = node(main, "far, turns", "control")
    assert control["op"] == "while" and control["calls"] == ["more", "halve"]
    assert control["args"] == ["0", "test=more", "body=halve"]
    assert node(main, "ok", "assert")["args"] == ['"not fine"']
    assert node(main, "h")["calls"] == []


def test_lines_are_those_of_the_file(client, main):
    lines = client.documents[URI].text.split("\n")
    first, last = node(main, "a, c")["lines"]
    assert lines[first].strip() == "a, c = both(" and lines[last].strip() == ")"
    b = node(main, "b")
    assert lines[b["lines"][0]][b["column"] :].startswith("b = add(h, y)")
    assert lines[node(main, "w")["lines"][0]].startswith("param w")
    assert lines[node(main, "y")["lines"][0]][node(main, "y")["column"] :].startswith("y: f32[4]")
    first, last = main["lines"]
    assert lines[first].startswith("graph main") and lines[last] == "}"


@pytest.mark.parametrize(
    "text, graph",
    [("graph both(", "both"), ("q = add", "both"), ("# Above", "main"), ("param w", "main"),
     ("m = less", "more")],
)  # fmt: skip
def test_a_line_stands_for_its_graph(client, text, graph):
    line = client.documents[URI].text[: client.documents[URI].text.index(text)].count("\n")
    assert ask(client, line=line)["graph"] == graph


def test_the_library_is_gone_into(client):
    name = library_graphs()[0]
    found = ask(client, graph=name)
    assert found["graph"] == name and found["nodes"]
    assert "stdlib" in found["uri"] and found["uri"].endswith(".opg")


def library_graphs() -> list[str]:
    from opstep.kernels import stdlib

    texts = [p.read_text() for p in sorted(Path(stdlib.__file__).parent.glob("*.opg"))]
    return [re.split(r"[<(]", line)[0].split()[1] for t in texts for line in t.split("\n")
            if line.startswith("graph ")]  # fmt: skip


def test_a_broken_graph_is_told_as_far_as_it_was_understood():
    text = """
    graph main(x: f32[N, 8]) -> f32[N, 8] {
      a = relu(x)
      b = rellu(a)
      c = add(b, a)
      d = = 3
      e = exp(nowhere)
      return c
    }
    """
    with editor() as client:
        client.open(text)
        graph = ask(client, graph="main")
        assert node(graph, "a")["values"] == [{"name": "a", "type": "f32[N, 8]"}]
        assert node(graph, "b")["values"] == [{"name": "b", "type": None}]
        assert "rellu" in node(graph, "b")["problem"] and "problem" not in node(graph, "a")
        assert "nowhere" in node(graph, "e")["problem"] and not edges(graph, node(graph, "e"))
        assert [e[1:4] for e in edges(graph, node(graph, "c", "op"))] == [
            ("b", "b", None), ("a", "a", "f32[N, 8]")
        ]  # fmt: skip


def test_an_edit_is_seen_at_once():
    with editor() as client:
        document = client.open("graph main(x: f32[N]) -> f32[N] {\n  y = relu(x)\n  return y\n}\n")
        assert node(ask(client, graph="main"), "y", "op")["op"] == "relu"
        at = document.text.index("relu")
        client.change(at, at + 4, "exp")
        assert node(ask(client, graph="main"), "y", "op")["op"] == "exp"


@pytest.mark.parametrize("params", [{"graph": "nope"}, {"uri": "file:///no/such/file.opg"}])
def test_what_is_not_there_is_said(client, params):
    with pytest.raises(ServerError, match=r"no graph nope|[Nn]o such file"):
        ask(client, **params)


def test_a_file_without_graphs_says_how_one_begins():
    with editor() as client:
        client.open("param w: f32[4] = zeros()\n")
        with pytest.raises(ServerError, match="has no graph"):
            ask(client)
