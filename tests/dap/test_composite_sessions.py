"""Ops that are graphs of others: a client steps into them, and reads their text."""

from __future__ import annotations

import pytest

TEXT = """\
graph main(x: f32[N]) -> f32[N] {
  a = mul(x, 2.0)
  y = softmax(a)
  return y
}
"""


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "softmax.opg"
    path.write_text(TEXT)
    return path


def test_a_step_into_an_op_shows_its_graph(client, path):
    client.start(path, inputs={"x": [0.0, 1.0, 2.0, 3.0]}, stopOnEntry=True)
    client.expect_stop("entry")
    client.go("next", "step")
    client.go("stepIn", "step")
    inner, outer = client.stack()
    assert (inner["name"], outer["name"]) == ("y = softmax", "main")
    source = inner["source"]
    assert "path" not in source
    assert source["name"] == "<softmax>"
    text = client.request("source", sourceReference=source["sourceReference"], source=source)
    lines = text["content"].splitlines()
    assert lines[0] == "graph softmax(x: f32[4]) -> f32[4] {"
    assert inner["line"] == 2
    client.go("next", "step")
    (inner, _) = client.stack()
    name = lines[1].split()[0]
    found = client.request("evaluate", expression=name, frameId=inner["id"])
    assert found["type"] == "f32[1]"
    client.go("stepOut", "step")
    (outer,) = client.stack()
    assert (outer["line"], outer["source"]["path"]) == (4, str(path))


HIDDEN = """\
graph main(x: f32[N, 4]) -> f32[N, 4], f32[N, 4] {
  s = softmax(x)
  y = layer_norm(x, shape=[4])
  l = log(s)
  return y, l
}
"""


@pytest.mark.parametrize(
    ("x", "line", "text"),
    [
        ([[3e25, 6e25, 9e25, 1.2e26]], 3, "square overflows on the way"),
        ([[0.0, 0.0, 0.0, 200.0]], 4, "log of 0"),
    ],
)
def test_a_session_begins_at_what_a_hunt_found(client, tmp_path, x, line, text):
    path = tmp_path / "hidden.opg"
    path.write_text(HIDDEN)
    client.start(path, inputs={"x": x}, symbols={"N": 1}, hunt=True)
    stop = client.expect_stop("exception")
    assert text in stop["text"]
    (top,) = client.stack()
    assert (top["line"], top["source"]["path"]) == (line, str(path))
    client.go("stepBack", "step")
    assert client.where()[1] == line


def test_the_report_of_a_nan_is_about_the_op(client, tmp_path):
    path = tmp_path / "hidden.opg"
    path.write_text(HIDDEN)
    client.start(path, inputs={"x": "inf"}, symbols={"N": 1}, filters=["nan"])
    client.expect_stop("exception")
    (top,) = client.stack()
    report = client.request("opstep/nanReport", frameId=top["id"], name="s")
    (link, *_) = report["links"]
    assert (link["kind"], link["name"], link["op"]) == ("origin", "s", "softmax")
    assert link["line"] == 2
    assert link["elements"][0]["rule"] == "+inf in the row: inf - inf"
    assert link["here"]
