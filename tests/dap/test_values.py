"""Expressions, values that are set, memory, completions, exceptions, over the wire."""

from __future__ import annotations

import base64
from pathlib import Path

import numpy as np
import pytest
from dap.client import Client, Refused, markers_of
from dap.test_data import INPUT, children, scopes, values


@pytest.fixture
def stopped(client, loops):
    """Stopped behind the call of `scaled`, before the loop."""
    client.start(loops, graph="main", inputs=INPUT, breakpoints=["looping"])
    client.expect_stop("breakpoint")
    return client


def evaluate(client, text: str, **more):
    return client.request("evaluate", expression=text, **more)


# --- expressions ----------------------------------------------------------------------------------


def test_values_of_expressions(stopped):
    assert evaluate(stopped, "max(abs(a))", context="watch")["result"] == "5.0"
    assert evaluate(stopped, "a * 2")["result"] == "[4.0, 6.0, 8.0, 10.0]"
    assert evaluate(stopped, "shape(a)")["result"] == "[4]"
    assert evaluate(stopped, "dtype(a)")["result"] == "f32"
    found = evaluate(stopped, "a > 3")
    assert found["result"] == "[false, false, true, true]" and found["indexedVariables"] == 4
    rows = children(stopped, evaluate(stopped, "stats(a)"))
    assert rows["mean"]["value"] == "3.5"


def test_a_result_can_be_opened(stopped):
    found = evaluate(stopped, "a + 1", context="hover")
    cells = children(stopped, found, filter="indexed")
    assert [c["value"] for c in cells.values()] == ["3.0", "4.0", "5.0", "6.0"]
    assert cells["[2]"]["evaluateName"] == "(a + 1)[2]"
    assert evaluate(stopped, "(a + 1)[2]")["result"] == "5.0"


def test_a_frame_is_where_names_are_looked_up(client, loops):
    client.start(loops, graph="main", inputs=INPUT, breakpoints=["scaling"])
    client.expect_stop("breakpoint")
    inner, outer = (f["id"] for f in client.stack())
    assert evaluate(client, "w", frameId=inner)["result"] == "[1.0, 1.0, 1.0, 1.0]"
    client.go("stepIn", "step")
    inner, outer = (f["id"] for f in client.stack())
    assert evaluate(client, "s", frameId=inner)["result"] == "[1.0, 2.0, 3.0, 4.0]"
    with pytest.raises(Refused, match="s"):
        evaluate(client, "s", frameId=outer)


@pytest.mark.parametrize(
    "text",
    ["", "a +", "nowhere", "a[9]", "().__class__", "__import__('os')", "open('/etc/passwd')",
     "a.__class__", "lambda: 1", "9" * 5000, "(" * 5000, "load('/etc/passwd')", "ones(1e18)"],
)  # fmt: skip
def test_expressions_that_are_wrong_or_hostile(stopped, text):
    with pytest.raises(Refused) as refused:
        evaluate(stopped, text, context="watch")
    assert "internal error" not in refused.value.text
    assert evaluate(stopped, "a[0]")["result"] == "2.0"


def test_the_clipboard_gets_all_elements(stopped):
    found = evaluate(stopped, "a", context="clipboard")
    assert found == {"result": "[2.0, 3.0, 4.0, 5.0]", "variablesReference": 0}
    assert evaluate(stopped, "stats(a).mean", context="clipboard")["result"] == "3.5"


def test_completions(stopped):
    found = stopped.request("completions", text="max(a", column=6)["targets"]
    labels = [t["label"] for t in found]
    assert labels[0] == "a" and "abs" in labels and "scaled" not in labels
    assert (found[0]["start"], found[0]["length"]) == (5, 1)
    assert stopped.request("completions", text="zzz", column=4)["targets"] == []
    far = stopped.request("completions", text="a", column=999)["targets"]
    assert far[0]["label"] == "a"


# --- setting --------------------------------------------------------------------------------------


def test_a_value_is_set_and_what_depends_on_it_follows(stopped):
    scope = scopes(stopped)["Inputs"]["variablesReference"]
    done = stopped.request("setVariable", variablesReference=scope, name="x", value="[5, 6, 7, 8]")
    assert done["value"] == "[5.0, 6.0, 7.0, 8.0]" and done["type"] == "f32[4]"
    assert "variables" in stopped.expect("invalidated")["areas"]
    assert values(stopped) == {"a": "[6.0, 7.0, 8.0, 9.0]"}


def test_what_was_shown_shows_what_was_set(stopped):
    """The numbers of frames, scopes and tensors hold."""
    frame = stopped.stack()[0]["id"]
    scope = scopes(stopped)["Values"]["variablesReference"]
    a = children(stopped, scope)["a"]
    done = stopped.request(
        "setVariable", variablesReference=a["variablesReference"], name="[1]", value="-3"
    )
    assert done["value"] == "-3.0"
    assert children(stopped, scope)["a"]["value"] == "[2.0, -3.0, 4.0, 5.0]"
    assert children(stopped, a, filter="indexed")["[1]"]["value"] == "-3.0"
    assert evaluate(stopped, "a[1]", frameId=frame)["result"] == "-3.0"
    raw = stopped.request("readMemory", memoryReference=a["memoryReference"], count=16)
    assert np.frombuffer(base64.b64decode(raw["data"]), "f4").tolist() == [2, -3, 4, 5]


def test_slices_params_and_the_console(stopped):
    done = stopped.request("setExpression", expression="a[:2]", value="[0, nan]")
    assert done["value"].startswith("[0.0, ")
    stopped.request("setExpression", expression="a[isnan(a)]", value="9")
    assert evaluate(stopped, "a")["result"] == "[0.0, 9.0, 4.0, 5.0]"
    assert evaluate(stopped, "a[3] = 1.5", context="repl")["result"] == "1.5"
    assert evaluate(stopped, "a[3] == 1.5", context="repl")["result"] == "true"
    stopped.request("setExpression", expression="w", value="2")
    assert evaluate(stopped, "w")["result"] == "[2.0, 2.0, 2.0, 2.0]"


QUOTED = """\
param `0.weight`: f32[2, 2] = ones()
state `return`: i32[] = 0

graph main(x: f32[4]) -> f32[2, 2] {
  y = relu(`0.weight`)
  n = add(`return`, 1)  # break: here
  `return` <- n
  return y
}
"""


def test_params_with_names_in_backquotes(client, program):
    client.start(program(QUOTED), graph="main", inputs=INPUT, breakpoints=["here"])
    client.expect_stop("breakpoint")
    assert evaluate(client, "mean(`0.weight`)")["result"] == "1.0"
    params = scopes(client)["Params"]["variablesReference"]
    weight = children(client, params)["0.weight"]
    assert weight["evaluateName"] == "`0.weight`"
    row = children(client, weight, filter="indexed")["[1]"]
    assert row["evaluateName"] == "`0.weight`[1]"
    client.request("setVariable", variablesReference=params, name="0.weight", value="3")
    client.request(
        "setVariable", variablesReference=row["variablesReference"], name="[0]", value="5"
    )
    assert evaluate(client, "`0.weight`[1, 1] = 7", context="repl")["result"] == "7.0"
    assert evaluate(client, row["evaluateName"])["result"] == "[5.0, 7.0]"
    for name in ("`0.weight`", "0.weight"):
        assert client.request("dataBreakpointInfo", name=name)["dataId"] == "0.weight"
        entries = client.request("opstep/statisticsHistory", name=name)["entries"]
        assert entries[-1]["statistics"]["max"] == 7
    found = client.request("completions", text="max(`0", column=7)["targets"]
    assert [t["label"] for t in found] == ["`0.weight`"]
    client.request("setDataBreakpoints", breakpoints=[{"dataId": "return"}])
    client.go("continue", "data breakpoint")


def test_loaded_values(stopped, loops):
    np.save(loops.parent / "mine.npy", np.full(4, 8, "f4"))
    with pytest.raises(Refused, match=r"not below|no such|there is no"):
        stopped.request("setExpression", expression="a", value='load("../../etc/passwd")')
    np.save(loops.parent / "wrong.npy", np.ones(3, "f4"))


CASES = """\
graph first(x: f32[4]) -> f32[4] {
  y = mul(x, 0.5)
  return y
}

graph second(x: f32[4]) -> f32[4] {
  y = add(x, 1.0)
  return y
}

graph main(x: f32[4], k: i32[]) -> f32[4] {
  i = add(k, 0)
  b = switch(i, x, cases=[first, second])
  c = add(b, 1.0)  # break: behind
  return c
}
"""


def test_what_is_set_can_make_an_op_fail(client, program):
    """Then the run stands before that op, and says so."""
    client.start(program(CASES), graph="main", inputs=INPUT | {"k": 0}, breakpoints=["behind"])
    client.expect_stop("breakpoint")
    with pytest.raises(Refused, match="index 7 is none of the 2 cases"):
        client.request("setExpression", expression="k", value="7")
    stop = client.expect_stop("step")
    assert "an op failed that depends on what was set" in stop["text"]
    assert client.where()[0] == "main"
    assert evaluate(client, "i")["result"] == "7"
    client.request("setExpression", expression="i", value="1")
    client.go("continue", "breakpoint")
    assert evaluate(client, "b")["result"] == "[2.0, 3.0, 4.0, 5.0]"


BRANCHES = """\
graph main(x: f32[2], n: i32[]) -> f32[2] {
  y = mid(x, n)
  z = add(y, 1.0)
  return z
}
graph mid(v: f32[2], n: i32[]) -> f32[2] {
  q = greater(n, 0)
  m = sub(n, 1)
  r = cond(q, v, m, then=mid, else=flat)
  s = add(r, 1.0)  # break: returned
  return s
}
graph flat(v: f32[2], n: i32[]) -> f32[2] {
  a = add(v, 1.0)
  h = log(a)  # break: deepest
  return h
}
"""


@pytest.mark.parametrize("marker", ["deepest", "returned"])
@pytest.mark.parametrize("mode", [{}, {"streams": 4, "alloc": "reuse"}])
def test_what_is_set_leads_elsewhere(client, program, marker, mode):
    """Frames that are left keep their numbers and have their own values; others are no more."""
    given = {"x": [1, 2], "n": 3}
    client.start(program(BRANCHES), graph="main", inputs=given, breakpoints=[marker], **mode)
    client.expect_stop("breakpoint")
    before = [frame["id"] for frame in client.stack()]
    for k in range(len(before)):
        scopes(client, k)
    third = scopes(client, -3)["Values"]
    named = next(v for v in children(client, third).values() if v["name"] == "q")
    assert named["value"] == "true"
    done = client.request(
        "setVariable", variablesReference=third["variablesReference"], name="q", value="false"
    )
    assert done["value"] == "false"
    assert set(client.expect("invalidated")["areas"]) == {"stacks", "variables"}
    assert client.where() == ("mid", markers_of(program(BRANCHES))["returned"])
    assert [frame["id"] for frame in client.stack()] == before[-3:]
    told = [values(client, scope, 0).keys() for scope in ("Inputs", "Values")]
    assert [list(names) for names in told] == [["v", "n"], ["q", "m", "r"]]
    assert [values(client, "Inputs", k).get("n") for k in range(3)] == ["2", "3", "3"]
    with pytest.raises(Refused, match="what was set leads elsewhere"):
        client.request("scopes", frameId=before[0])


def test_an_op_that_one_stands_behind_does_not_come_any_more(client, program):
    given = {"x": [-2, 2], "n": 1}
    client.start(program(BRANCHES), graph="main", inputs=given, filters=["nan"])
    client.expect_stop("exception")
    lines = markers_of(program(BRANCHES))
    assert client.where() == ("flat", lines["deepest"])
    outer = client.stack()[-2]["id"]
    client.request("setExpression", expression="q", value="false", frameId=outer)
    assert client.where() == ("mid", lines["returned"])
    assert client.stack()[0]["id"] == outer and "r" in values(client)


@pytest.mark.parametrize(
    "target, value, what",
    [
        ("a", "[1, 2]", "f32"),
        ("a", "zzz", "zzz"),
        ("nowhere", "1", "nowhere"),
        ("a + 1", "1", "neither a tensor nor a part"),
        ("a[7]", "1", "7"),
        ("a", "", "there is no expression"),
    ],
)
def test_values_that_do_not_fit(stopped, target, value, what):
    with pytest.raises(Refused, match=what):
        stopped.request("setExpression", expression=target, value=value)
    assert values(stopped) == {"a": "[2.0, 3.0, 4.0, 5.0]"}


def test_errors_say_where(stopped):
    with pytest.raises(Refused) as told:
        evaluate(stopped, "max(a) + max(zzz)", context="hover")
    assert told.value.text == "column 14: there is no zzz here"
    with pytest.raises(Refused) as told:
        evaluate(stopped, "max(a) + max(zzz)", context="repl")
    where = ["expression:1:14: error: there is no zzz here", "  max(a) + max(zzz)", f"{' ' * 15}^"]
    assert told.value.text.splitlines() == where
    assert told.value.message == "column 14: there is no zzz here"
    with pytest.raises(Refused, match=r"\n  1 \+ zzz\n      \^"):
        evaluate(stopped, "a[3] = 1 + zzz", context="repl")
    with pytest.raises(Refused, match=r": 1 \+ zzz: column 5: there is no zzz here"):
        stopped.request("setExpression", expression="a", value="1 + zzz")


def test_what_cannot_be_set(stopped):
    for scope, name in (("Memory", "device"), ("Op", "statement"), ("Values", "nowhere")):
        with pytest.raises(Refused, match="cannot be set"):
            stopped.request("setVariable", variablesReference=scopes(stopped)[scope][
                "variablesReference"], name=name, value="1")  # fmt: skip


# --- memory ---------------------------------------------------------------------------------------


def test_memory_is_read_in_parts(stopped):
    reference = children(stopped, scopes(stopped)["Values"])["a"]["memoryReference"]

    def read(offset: int, count: int):
        return stopped.request("readMemory", memoryReference=reference, offset=offset, count=count)

    raw = np.array([2, 3, 4, 5], "f4").tobytes()
    assert base64.b64decode(read(3, 7)["data"]) == raw[3:10]
    beyond = read(12, 100)
    assert base64.b64decode(beyond["data"]) == raw[12:] and beyond["unreadableBytes"] == 96
    assert read(16, 8)["unreadableBytes"] == 8 and read(-4, 8)["unreadableBytes"] == 8
    assert read(0, 0)["data"] == ""
    assert int(read(4, 1)["address"], 16) - int(read(0, 1)["address"], 16) == 4


def test_memory_is_written(stopped):
    reference = children(stopped, scopes(stopped)["Values"])["a"]["memoryReference"]
    data = base64.b64encode(np.array([7, 8], "f4").tobytes()).decode()
    done = stopped.request("writeMemory", memoryReference=reference, offset=4, data=data)
    assert done["bytesWritten"] == 8
    told = stopped.expect("memory")
    assert told == {"memoryReference": reference, "offset": 4, "count": 8}
    assert values(stopped) == {"a": "[2.0, 7.0, 8.0, 5.0]"}
    given = {"memoryReference": reference, "offset": 12, "data": data}
    with pytest.raises(Refused, match="do not fit"):
        stopped.request("writeMemory", given)
    assert stopped.request("writeMemory", given, allowPartial=True)["bytesWritten"] == 4
    with pytest.raises(Refused, match="not base64"):
        stopped.request("writeMemory", memoryReference=reference, data="%%%")


@pytest.mark.parametrize("reference", ["0x1000", "tensor:x", "tensor:99999", "", "tensor:-1"])
def test_no_other_memory_is_read(stopped, reference):
    with pytest.raises(Refused):
        stopped.request("readMemory", memoryReference=reference, count=16)


# --- trouble --------------------------------------------------------------------------------------

BAD = """\
graph main(x: f32[4]) -> f32[4] {
  d = sub(x, 2.5)
  l = log(d)
  e = mul(l, 2.0)
  f = add(e, 1.0)
  return f
}
"""


def test_an_exception_comes_with_its_verdict(client, program):
    path = program(BAD)
    client.start(path, inputs=INPUT, filters=["nan"])
    client.expect_stop("exception")
    info = client.request("exceptionInfo", threadId=1)
    assert info["exceptionId"] == "nan" and info["breakMode"] == "always"
    assert info["description"] == (
        "l, the result of log: 2 NaN of 4 elements (log of a negative number)"
    )
    details = info["details"]
    assert details["evaluateName"] == "l"
    assert details["stackTrace"] == f"at main ({path}:3)"  # one place, which clients link
    (inner,) = details["innerException"]
    assert "d[0] = -1.5" in inner["message"] and "min -1.5  max 1.5" in inner["message"]


def test_an_exception_names_the_place_of_its_birth(client, program):
    path = program(BAD)
    client.start(path, inputs=INPUT, breakpoints=[5])
    client.expect_stop("breakpoint")
    client.request("setExceptionBreakpoints", filters=["nan"])
    client.go("continue", "exception")
    info = client.request("exceptionInfo", threadId=1)
    assert info["description"] == (
        "f, the result of add: 2 NaN of 4 elements, born in l (log of a negative number)"
    )
    assert info["details"]["stackTrace"] == f"born at main ({path}:3)"


ASSERTS = """\
graph main(x: f32[4]) -> f32[4] {
  m = max(x)
  fine = less(m, 2.0)
  assert fine, "it is too large"
  y = add(x, 1.0)
  return y
}
"""


def test_a_failed_assert_is_an_exception(client, program):
    client.start(program(ASSERTS), inputs=INPUT, filters=["assert"])
    client.expect_stop("exception")
    info = client.request("exceptionInfo", threadId=1)
    assert info["exceptionId"] == "assert" and "it is too large" in info["description"]
    assert info["details"]["typeName"] == "failed assert"
    assert evaluate(client, "m")["result"] == "4.0"
    with pytest.raises(Refused, match="has no value"):
        client.request("opstep/nanReport", name="nowhere")


def test_no_exception_no_information(stopped):
    with pytest.raises(Refused, match="is not stopped at an exception"):
        stopped.request("exceptionInfo", threadId=1)


def test_a_nan_is_followed_back(client, program):
    client.start(program(BAD), inputs=INPUT, breakpoints=[6])
    client.expect_stop("breakpoint")
    report = client.request("opstep/nanReport", name="f")
    assert report["found"] and [k["name"] for k in report["links"]] == ["f", "e", "l"]
    assert [k["kind"] for k in report["links"]] == ["propagated", "propagated", "origin"]
    born = report["links"][-1]
    assert born["op"] == "log" and born["elements"][0]["of"][0]["name"] == "d"
    lines = Path(client.stack()[0]["source"]["path"]).read_text().splitlines()
    for link in report["links"]:
        assert lines[link["line"] - 1].strip().startswith(f"{link['name']} = {link['op']}(")
        assert link["expression"] == link["name"] and link["graph"] == "main"
        assert Path(link["source"]["path"]).name == "model.opg"
    (blamed, *_), (operand,) = born["elements"][0]["of"], born["operands"]
    assert blamed["operand"] == operand["operand"] == 0 and operand["expression"] == "d"
    place = ", ".join(map(str, blamed["place"]))
    reference = operand["memoryReference"]
    assert not client.request("opstep/nanReport", memoryReference=reference)["found"]
    reference = report["links"][1]["memoryReference"]
    shorter = client.request("opstep/nanReport", memoryReference=reference)["links"]
    assert [k["name"] for k in shorter] == ["e", "l"]
    reference = operand["memoryReference"]
    found = client.request(
        "opstep/tensorSlice", expression=f"value[{place}]", memoryReference=reference
    )
    (value,) = np.frombuffer(base64.b64decode(found["data"]), "f4")
    assert value == np.float32(blamed["value"])
    assert not client.request("opstep/nanReport", name="d")["found"]
    with pytest.raises(Refused, match="which tensor"):
        client.request("opstep/nanReport")


# --- data breakpoints -----------------------------------------------------------------------------


def test_what_can_be_watched(client, loops):
    client.start(loops, graph="main", inputs=INPUT, functions=["d"], breakpoints=["log"])
    client.expect_stop("breakpoint")
    client.go("next", "step")

    def info(name: str, **more):
        return client.request("dataBreakpointInfo", name=name, **more)

    scope = {k: s["variablesReference"] for k, s in scopes(client).items()}
    assert info("c", variablesReference=scope["Values"])["dataId"] == "main.c"
    assert info("w", variablesReference=scope["Params"])["dataId"] == "w"
    assert info("c")["dataId"] == "main.c" and info("*")["dataId"] == "*"
    assert info("max(c) > w[0]")["dataId"] == "main.c if max(c) > w[0]"
    assert info("a + c > 1")["dataId"] == "main.c if a + c > 1"
    row = children(client, scope["Values"])["c"]["variablesReference"]
    assert info("[2]", variablesReference=row)["dataId"] == "main.c"
    given = info("a", variablesReference=scope["Values"])
    assert given["dataId"] == "scaled.t" and "what scaled computes as t" in given["description"]
    assert "on a condition that calls it value" in info("max(a) > 1")["description"]
    for wrong in ("1 + 1", "nowhere", "a +", "max(a) > 1", "x"):
        assert info(wrong)["dataId"] is None


def test_a_watched_tensor_stops_the_run(client, loops):
    client.start(loops, graph="main", inputs=INPUT, breakpoints=["calling"])
    client.expect_stop("breakpoint")
    told = client.request("setDataBreakpoints", breakpoints=[{"dataId": "halve.y if max(y) < 2"}])
    assert told["breakpoints"][0]["verified"]
    client.go("continue", "data breakpoint")
    assert evaluate(client, "y")["result"] == "[0.5, 0.75, 1.0, 1.25]"


def test_clients_that_count_from_zero(loops):
    with Client.over_socket() as client:
        client.initialize(linesStartAt1=False, columnsStartAt1=False)
        client.start(loops, graph="main", inputs=INPUT, stopOnEntry=True)
        client.expect_stop("entry")
        frame = client.stack()[0]
        assert (frame["line"], frame["column"]) == (20, 2)
        found = client.request("completions", text="max(x", column=5)["targets"]
        assert (found[0]["label"], found[0]["start"]) == ("x", 4)
