"""Inlay hints and live values, inline values for the debugger, code lenses."""

import pytest
from lsp_client import ServerError, editor

TEXT = """
    param w: f32[8] = ones()

    graph main(x: f32[N, 8]) -> f32[N, 8] {
      y = mul(x, w)
      z: f32[N, 8] = relu(y)
      values, indices = sort(z)
      fine = all(values)
      assert fine, "no"
      same(y)
      oops = rellu(y)
      return z
    }

    graph same(x: f32[N, 8]) {
      a = helper(x)
    }

    graph helper(x: f32[N, 8]) -> f32[N, 8] {
      b = cond(true_, x, then=helper, else=helper)
      return x
    }
    """
URI = "file:///programs/model.opg"
WHOLE = {"start": {"line": 0, "character": 0}, "end": {"line": 999, "character": 0}}


@pytest.fixture
def client():
    with editor() as found:
        yield found


def hints(client, range=WHOLE):
    """The hints as (line, what stands before it, label)."""
    document = client.current
    found = []
    for h in client.about("inlayHint", range=range) or []:
        line = document.text.split("\n")[h["position"]["line"]]
        found.append(
            (h["position"]["line"], line[: h["position"]["character"]].strip(), h["label"])
        )
    return found


def test_types_stand_behind_results_that_have_none(client):
    client.open(TEXT)
    assert hints(client) == [
        (3, "y", ": f32[N, 8]"),
        (5, "values", ": f32[N, 8]"),
        (5, "values, indices", ": i64[N, 8]"),
        (6, "fine", ": bool[]"),
        (14, "a", ": f32[N, 8]"),
    ]


def test_a_click_writes_the_type(client):
    document = client.open(TEXT)
    before = [d["message"] for d in client.diagnostics()]
    found = client.about("inlayHint", range=WHOLE)
    edits = [e for h in found for e in h["textEdits"]]
    text = document.edited(edits)
    assert "values: f32[N, 8], indices: i64[N, 8] = sort(z)" in text
    client.rewrite(text)
    assert hints(client) == []
    assert [d["message"] for d in client.diagnostics()] == before


@pytest.mark.parametrize(
    "first, last, lines", [(3, 3, [3]), (4, 4, []), (5, 6, [5, 5, 6]), (0, 2, [])]
)
def test_only_the_range_is_answered(client, first, last, lines):
    client.open(TEXT)
    range = {"start": {"line": first, "character": 0}, "end": {"line": last, "character": 99}}
    assert [line for line, *_ in hints(client, range)] == lines


def test_operand_names_are_shown_where_asked_for():
    settings = {"inlayHints": {"types": False, "operands": True}}
    with editor(options=settings) as client:
        client.open(TEXT)
        assert hints(client) == [
            (3, "y = mul(", "a:"),
            (3, "y = mul(x,", "b:"),
            (18, "b = cond(", "pred:"),
        ]


def test_live_values_move_no_text(client):
    client.open(TEXT)
    before = hints(client)
    values = [{"name": "y", "graph": "main", "text": "f32[4, 8] mean 0.1", "step": 3}]
    client.notify("opstep/live", {"uri": URI, "values": values})
    assert hints(client) == before
    assert (3, "y") in looked_up(client, 4)


def looked_up(client, line, range=WHOLE):
    place = {"start": {"line": line, "character": 2}, "end": {"line": line, "character": 2}}
    context = {"frameId": 1, "stoppedLocation": place}
    found = client.about("inlineValue", range=range, context=context) or []
    return [(v["range"]["start"]["line"], v["variableName"]) for v in found]


@pytest.mark.parametrize(
    "line, names",
    [
        (3, [(2, "x"), (3, "x"), (3, "w"), (3, "y")]),
        (4, [(2, "x"), (3, "y"), (4, "y"), (4, "z")]),
        (
            7,
            [(2, "x"), (3, "y"), (4, "z"), (5, "values"), (5, "indices"), (6, "fine"), (7, "fine")],
        ),
        (14, [(13, "x"), (14, "x"), (14, "a")]),
        (0, []),
    ],
)
def test_values_above_the_stop_are_looked_up(client, line, names):
    client.open(TEXT)
    assert looked_up(client, line) == names


def test_looked_up_names_are_where_they_stand(client):
    document = client.open(TEXT)
    place = {"start": {"line": 4, "character": 2}, "end": {"line": 4, "character": 2}}
    context = {"frameId": 1, "stoppedLocation": place}
    for value in client.about("inlineValue", range=WHOLE, context=context):
        assert document.at(value["range"]) == value["variableName"]


@pytest.mark.parametrize(
    "params",
    [
        {}, {"uri": 3}, {"uri": URI, "values": 3}, {"uri": URI, "values": [3]},
        {"uri": URI, "values": [{"name": "y"}]},
        {"uri": URI, "values": [{"name": "y", "text": 3}]},
    ],
)  # fmt: skip
def test_live_values_that_are_none_are_refused(client, params):
    client.open(TEXT)
    with pytest.raises(ServerError, match="opstep/live: "):
        client.request("opstep/live", params)


# --- code lenses ----------------------------------------------------------------------------------


def test_lenses_above_each_graph(client):
    client.open(TEXT)
    found = client.about("codeLens")
    named = [(c["command"]["title"], c["command"]["command"], c["command"]["arguments"][0])
             for c in found if c.get("command")]  # fmt: skip
    titles = ["Run", "Debug", "Hunt NaN", "Plan", "Graph"]
    verbs = ["run", "debug", "hunt", "plan", "openGraph"]
    for k, graph in enumerate(("main", "same", "helper")):
        arguments = {"uri": URI, "graph": graph}
        assert named[5 * k : 5 * k + 5] == [
            (t, f"opstep.{verb}", arguments) for t, verb in zip(titles, verbs, strict=True)
        ]
    assert {c["range"]["start"]["line"] for c in found} == {2, 13, 17}


def test_lenses_count_ops_and_callers(client):
    client.open(TEXT)
    counts = [client.request("codeLens/resolve", c)["command"]["title"]
              for c in client.about("codeLens") if not c.get("command")]  # fmt: skip
    assert counts == ["6 ops", "1 op · called by 1 graph", "1 op · called by 2 graphs"]


def test_counts_follow_an_edit(client):
    document = client.open(TEXT)
    start = document.text.index("  same(y)\n")
    client.about("codeLens")
    client.change(start, start + len("  same(y)\n"), "")
    counts = [client.request("codeLens/resolve", c)["command"]["title"]
              for c in client.about("codeLens") if not c.get("command")]  # fmt: skip
    assert counts[:2] == ["5 ops", "1 op"]


def test_lenses_can_be_switched_off():
    with editor(options={"codeLens": False}) as client:
        client.open(TEXT)
        assert client.about("codeLens") == []
