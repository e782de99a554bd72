"""Stacks, scopes and variables, over the wire."""

from __future__ import annotations

import statistics
import time

import pytest
from branching import branching
from dap.client import Client, Refused, markers_of

from opstep.dap import variables

INPUT = {"x": [1.0, 2.0, 3.0, 4.0]}
WIDE = """\
param w: f32[300, 20] = normal(std=1.0)

graph main(x: f32[300, 20]) -> f32[300, 20] {
  a = mul(x, w)  # break: first
  n = sum(a, axes=[1])
  k = cast(n, dtype=i32)
  b = add(a, 1.0) at "elsewhere.py":7  # break: imported
  return b
}
"""


@pytest.fixture
def halving(client, loops):
    """Stopped in the second turn of a loop."""
    client.start(loops, graph="main", inputs=INPUT, breakpoints=["halving"])
    client.expect_stop("breakpoint")
    client.go("continue", "breakpoint")
    return client


@pytest.fixture
def wide(client, program):
    """Stopped where everything has been computed but `b`."""
    path = program(WIDE)
    client.start(path, graph="main", inputs={"x": "ones"}, breakpoints=["imported"])
    client.expect_stop("breakpoint")
    return client


def scopes(client, frame: int = 0) -> dict[str, dict]:
    number = client.stack()[frame]["id"]
    return {s["name"]: s for s in client.request("scopes", frameId=number)["scopes"]}


def children(client, reference, **more) -> dict[str, dict]:
    number = reference if isinstance(reference, int) else reference["variablesReference"]
    found = client.request("variables", variablesReference=number, **more)["variables"]
    assert len({v["name"] for v in found}) == len(found)
    return {v["name"]: v for v in found}


def values(client, scope: str = "Values", frame: int = 0) -> dict[str, str]:
    return {n: v["value"] for n, v in children(client, scopes(client, frame)[scope]).items()}


# --- the stack ------------------------------------------------------------------------------------


def test_frames_are_graphs_and_turns(halving, loops):
    frames = halving.stack()
    assert [f["name"] for f in frames] == ["halve [i=1]", "main"]
    assert frames[0]["line"] == markers_of(loops)["halving"]
    assert frames[1]["line"] == markers_of(loops)["looping"]
    assert all(f["canRestart"] and f["source"]["path"] == str(loops) for f in frames)
    assert frames[0]["endColumn"] > frames[0]["column"]


def test_where_a_frame_ends_is_not_said_to_who_would_select_it(client, loops):
    client.initialize(clientID="vscode")
    client.start(loops, graph="main", inputs=INPUT, breakpoints=["halving"])
    client.expect_stop("breakpoint")
    frame = client.stack()[0]
    assert frame["column"] > 1 and not {"endLine", "endColumn"} & frame.keys()


def test_the_stack_is_loaded_in_parts(halving):
    part = halving.request("stackTrace", threadId=1, startFrame=1, levels=1)
    assert [f["name"] for f in part["stackFrames"]] == ["main"] and part["totalFrames"] == 2
    nothing = halving.request("stackTrace", threadId=1, startFrame=9, levels=5)
    assert nothing == {"stackFrames": [], "totalFrames": 2}
    same = halving.request("stackTrace", threadId=1, startFrame=1)["stackFrames"][0]["id"]
    assert same == part["stackFrames"][0]["id"]


def test_names_of_frames_as_they_are_wanted(halving):
    form = {"parameters": True, "parameterNames": True, "parameterTypes": True, "line": True}
    found = halving.request("stackTrace", threadId=1, format=form, check=False)["stackFrames"]
    assert found[1]["name"] == f"main(x: f32[4]), line {found[1]['line']}"


def test_lines_of_python_that_are_nowhere_are_shown_if_asked_for(wide):
    assert [f["name"] for f in wide.stack()] == ["main"]
    assert wide.request("opstep/sourceView", view="python") == {"view": "python"}
    (frame,) = wide.stack()
    assert frame["name"] == "elsewhere.py:7"
    assert frame["line"] == 7 and frame["presentationHint"] == "subtle"
    assert set(values(wide, "Inputs")) == {"x"}


def test_a_thread_that_is_not_there(halving):
    with pytest.raises(Refused, match="no thread 7"):
        halving.request("stackTrace", threadId=7)


# --- scopes and variables -------------------------------------------------------------------------


def test_scopes_are_those_of_the_frame(halving):
    assert list(scopes(halving)) == ["Inputs", "Values", "Params", "Op", "Memory"]
    assert values(halving, "Inputs") == {"x": "[1.0, 1.5, 2.0, 2.5]"}
    assert values(halving) == {}
    assert values(halving, "Inputs", 1) == {"x": "[1.0, 2.0, 3.0, 4.0]"}
    assert values(halving, "Values", 1) == {"a": "[2.0, 3.0, 4.0, 5.0]"}
    assert values(halving, "Params") == {"w": "[1.0, 1.0, 1.0, 1.0]"}


def test_the_op_has_operands_attributes_and_what_it_costs(wide):
    wide.go("stepBack", "step")
    wide.go("stepBack", "step")
    found = values(wide, "Op")
    assert found["statement"].startswith("n = sum(a, axes=[1])")
    assert found["axes"] == "[1]" and found["x"].startswith("f32[300, 20]  mean")
    assert "bytes" in found["moves"] and "-> n" not in found


def test_memory_says_where_values_are(wide):
    found = children(wide, scopes(wide)["Memory"])
    assert found["device"]["value"] == "cpu"
    assert found["how it runs"]["value"] == "streams=1 alloc=fresh fill=nan sync=op"
    rows = children(wide, found["values"])
    assert set(rows) == {"x", "a", "n", "k"} and rows["a"]["value"].endswith("24,000 bytes")


def test_a_tensor_in_one_line_and_by_rows(wide):
    a = children(wide, scopes(wide)["Values"])["a"]
    assert a["type"] == "f32[300, 20]" and a["value"].startswith("f32[300, 20]  mean ")
    assert (a["namedVariables"], a["indexedVariables"]) == (2, 300)
    assert a["evaluateName"] == "a" and a["memoryReference"]
    known = children(wide, a, filter="named")
    assert list(known) == ["statistics", "made by"]
    figures = children(wide, known["statistics"])
    assert figures["count"]["value"] == "6,000" and figures["nan"]["value"] == "0"
    assert (
        sum(int(b["value"].replace(",", "")) for b in children(wide, figures["histogram"]).values())
        > 5900
    )
    assert set(children(wide, known["made by"])) == {"a (x)", "b (w)"}
    rows = children(wide, a, filter="indexed", start=298, count=5)
    assert list(rows) == ["[298]", "[299]"] and rows["[298]"]["evaluateName"] == "a[298]"
    cells = children(wide, rows["[299]"])
    assert len(cells) == 20 and cells["[3]"]["evaluateName"] == "a[299, 3]"
    said = wide.request("evaluate", expression="a[299, 3]")["result"]
    assert said == cells["[3]"]["value"]


def test_numbers_in_hexadecimal(wide):
    k = children(wide, scopes(wide)["Values"])["k"]
    plain = children(wide, k, filter="indexed", count=3)
    written = children(wide, k, filter="indexed", count=3, format={"hex": True})
    assert [int(v["value"]) for v in plain.values()] == [
        int(v["value"], 16) for v in written.values()
    ]


def test_a_client_without_pages_gets_ranges(program):
    with Client.over_socket() as client:
        client.initialize(supportsVariablePaging=False, supportsVariableType=False)
        client.start(program(WIDE), graph="main", inputs="ones", breakpoints=["imported"])
        client.expect_stop("breakpoint")
        a = children(client, scopes(client)["Values"])["a"]
        assert "type" not in a
        found = children(client, a, filter="indexed")
        assert list(found) == ["[0..99]", "[100..199]", "[200..299]"]
        assert list(children(client, found["[100..199]"]))[:2] == ["[100]", "[101]"]


def test_where_a_variable_is_declared(halving, loops):
    a = children(halving, scopes(halving, 1)["Values"])["a"]
    place = halving.request("locations", locationReference=a["declarationLocationReference"])
    assert place["source"]["path"] == str(loops)
    assert (place["line"], place["column"]) == (markers_of(loops)["calling"], 3)
    w = children(halving, scopes(halving)["Params"])["w"]
    place = halving.request("locations", locationReference=w["declarationLocationReference"])
    assert (place["line"], place["column"]) == (1, 7)


def test_references_end_with_the_stop(halving):
    frame, scope = halving.stack()[0]["id"], scopes(halving)["Inputs"]["variablesReference"]
    halving.go("next", "step")
    with pytest.raises(Refused, match="the run went on since"):
        halving.request("scopes", frameId=frame)
    with pytest.raises(Refused, match="the run went on since"):
        halving.request("variables", variablesReference=scope)


@pytest.mark.parametrize("number", [0, -1, 999_999, 2**40])
def test_references_that_never_were(halving, number):
    with pytest.raises(Refused, match="there is no such"):
        halving.request("variables", variablesReference=number)
    with pytest.raises(Refused, match="there is no such"):
        halving.request("scopes", frameId=number)


def test_a_frame_is_no_variable(halving):
    with pytest.raises(Refused, match="there is no such"):
        halving.request("variables", variablesReference=halving.stack()[0]["id"])


def test_ten_thousand_values(program):
    """Older values stand in groups; a stop is looked at in a time that does not grow with them."""
    count = 10_000
    lines = ["graph main(x: f32[8, 128]) -> f32[8, 128] {", "  v0 = mul(x, 1.5)"]
    lines += [f"  v{i} = add(v{i - 1}, 1.0)" for i in range(1, count)]
    lines += [f"  return v{count - 1}", "}", ""]
    with Client.over_socket() as client:
        given = {"graph": "main", "inputs": "random", "breakpoints": [count + 2]}
        client.start(program("\n".join(lines)), **given)
        client.expect_stop("breakpoint")
        taken = []
        for _ in range(5):
            began = time.process_time()
            found = children(client, scopes(client)["Values"])
            taken.append(time.process_time() - began)
        assert len(found) == 199 and next(iter(found)) == "v0 … v99"
        assert f"v{count - 1}" in found
        group = children(client, found["v0 … v99"])
        assert len(group) == 100 and group["v7"]["evaluateName"] == "v7"
        assert statistics.median(taken) < 0.5, taken  # the benchmark has the figure


def test_small_tensors_are_told_at_once_however_slow_the_machine_is(program, monkeypatch):
    monkeypatch.setattr(variables, "EAGER_S", -1.0)
    lines = ["graph main(x: f32[4]) -> f32[4] {", "  v0 = mul(x, 1.5)"]
    lines += [f"  v{i} = add(v{i - 1}, 1.0)" for i in range(1, 60)]
    lines += ["  return v59", "}", ""]
    with Client.over_socket() as client:
        client.start(program("\n".join(lines)), graph="main", inputs="ones", breakpoints=[62])
        client.expect_stop("breakpoint")
        found = children(client, scopes(client)["Values"])
        told = [name for name, v in found.items() if "[" in v["value"].removeprefix("f32[4]")]
        lazy = [name for name, v in found.items() if v.get("presentationHint", {}).get("lazy")]
        assert (len(told), len(lazy)) == (50, 10)


def test_what_was_dropped_waits_until_it_is_opened(program):
    lines = ["graph main(x: f32[64, 64]) -> f32[64, 64] {", "  v0 = mul(x, 1.5)"]
    lines += [f"  v{i} = add(v{i - 1}, 1.0)" for i in range(1, 190)]
    lines += ["  return v189  # break: end", "}", ""]
    with Client.over_socket() as client:
        given = {"inputs": "ones", "memoryBudget": 1 << 20, "breakpoints": ["end"]}
        client.start(program("\n".join(lines)), **given)
        client.expect_stop("breakpoint")
        found = children(client, scopes(client)["Values"])
        gone = [v for v in found.values() if v["value"] == "f32[64, 64]  dropped"]
        assert gone and all(v["presentationHint"]["lazy"] for v in gone)
        (opened,) = children(client, gone[0]).values()
        number = 1.5 + int(opened["name"][1:])
        assert opened["value"] == f"f32[64, 64]  all {number:.4g}"


TWICE = """\
graph same(x: f32[4]) -> f32[4] {
  return x
}

graph main(x: f32[4]) -> f32[4] {
  a = add(x, 1.0)
  b = same(a)
  c = mul(b, 2.0)  # break: here
  d = add(c, 1.0)
  e = add(d, 1.0)
  f = add(e, 1.0)
  return f
}
"""


def test_a_value_with_two_names(client, program):
    client.start(program(TWICE), graph="main", inputs=INPUT, breakpoints=["here"])
    client.expect_stop("breakpoint")
    assert values(client) == {"a": "[2.0, 3.0, 4.0, 5.0]", "b": "[2.0, 3.0, 4.0, 5.0]"}
    client.request("setExpression", expression="b", value="0")
    client.go("next", "step")
    assert values(client)["c"] == "[0.0, 0.0, 0.0, 0.0]"


def test_the_end_can_be_looked_at(client, loops):
    client.start(loops, graph="main", inputs=INPUT, stopAtEnd=True)
    client.expect_stop("pause")
    assert [f["name"] for f in client.stack()] == ["main"]
    assert set(values(client)) == {"a", "b", "c", "d"}


@pytest.mark.parametrize("alloc", ["fresh", "reuse"])
def test_each_stream_has_a_stack(client, program, alloc):
    """With alloc=reuse some values are gone: they are computed again when they are opened."""
    path = program(branching(3, 4))
    given = {"inputs": "ones", "mode": "async", "streams": 3, "alloc": alloc, "stopAtEnd": True}
    client.start(path, stopOnEntry=True, **given)
    client.expect_stop("entry")
    for _ in range(6):
        client.go("next")
    tops = {}
    for thread in client.request("threads")["threads"]:
        (frame,) = client.stack(thread["id"])
        tops[thread["id"]] = frame["line"]
        found = client.request("scopes", frameId=frame["id"])["scopes"]
        inputs = next(scope for scope in found if scope["name"] == "Inputs")
        assert children(client, inputs)["x"]["value"].startswith("f32[")
    assert len(tops) > 1 and len(set(tops.values())) == len(tops)
    client.go("continue", "pause")
    found = children(client, scopes(client)["Values"])
    waiting = [v for v in found.values() if "dropped" in v["value"]]
    assert bool(waiting) == (alloc == "reuse")
    for variable in waiting[:2]:
        (opened,) = children(client, variable).values()
        assert "dropped" not in opened["value"]
