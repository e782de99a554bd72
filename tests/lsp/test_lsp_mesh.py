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
