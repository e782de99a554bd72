"""A mesh in an editor: what is said about its words, and what follows when it changes."""

from __future__ import annotations

import pytest
from lsp_client import editor

PROGRAM = """
    me‹mesh›sh da‹declared›ta: 4, model: 2

    graph main(x: f32[8]) -> f32[2] {
      y = reduce_scatter(x, ov‹attribute›er=da‹axis›ta)
      z = all_gather(x, over=‹value›)
      u = barrier(x, ‹argument›)
      return y
    }
    """


@pytest.fixture
def client():
    with editor() as found:
        yield found


def test_what_is_said_about_it(client):
    client.open(PROGRAM)
    assert "Declares how the ranks that run the program together" in client.hover("mesh")
    for mark in ("declared", "axis"):
        assert "Along `data`: 4 ranks." in client.hover(mark)
    labels = [item["label"] for item in client.completion("value")]
    assert labels[:2] == ["data", "model"]
    (over,) = [item for item in client.completion("argument") if item["label"].startswith("over")]
    assert over["textEdit"]["newText"] == "over=${1}"
    assert "an axis of the mesh, or a list of them" in client.hover("attribute")


def test_a_change_of_the_mesh_is_checked_everywhere(client):
    text = PROGRAM.replace(
        "      z = all_gather(x, over=‹value›)\n      u = barrier(x, ‹argument›)\n", ""
    )
    client.open(text.replace("da‹declared›ta: 4", "data: ‹four›4"))
    assert client.diagnostics() == []
    (place,) = [client.place("four")[1]]
    at = client.current.offset(place)
    client.change(at, at + 1, "2")
    (message,) = client.diagnostics()
    assert "graph main returns f32[2], but y is f32[4]" in message["message"]


SHARDED = """
    mesh data: 4, model: 2

    param w‹tensor›: f32[8, 6] ov‹over›er mod‹axis›el ax‹which›is 1 = zeros()
    param v: f32[6, ‹six›6] over model‹message› = zeros()
    param u: f32[8] ‹sharding›
    param t: f32[8] over ‹mesh›

    graph main(x: f32[8, 3]) -> f32[8, 3] {
      y = sub(x, ‹use›w)
      return y
    }
    """


def test_a_param_that_is_declared_as_shards(client):
    client.open(SHARDED)
    for mark in ("tensor", "use"):
        told = client.hover(mark)
        assert "over model axis 1" in told
        assert "Each of 2 ranks along model has `f32[8, 3]`, a part along axis 1." in told
    assert "Each rank has a part of the tensor" in client.hover("over")
    assert "Along `model`: 2 ranks." in client.hover("axis")
    assert "Which axis of the tensor is split" in client.hover("which")
    assert "over" in [item["label"] for item in client.completion("sharding")]
    labels = [item["label"] for item in client.completion("mesh")]
    assert labels[:2] == ["data", "model"]


def test_shards_are_checked_as_they_are_typed(client):
    text = SHARDED.replace("    param u: f32[8] ‹sharding›\n", "")
    client.open(text.replace("    param t: f32[8] over ‹mesh›\n", ""))
    errors = [d for d in client.diagnostics() if d["severity"] == 1]
    assert errors == []  # x and w agree, as parts do
    at = client.current.offset(client.place("axis")[1])
    start = client.current.text.rfind("mod", 0, at)
    client.change(start, start + len("model"), "data")
    (message,) = [d["message"] for d in client.diagnostics() if d["severity"] == 1]
    assert "4 ranks along data cannot share axis 1 of f32[8, 6] evenly" in message
