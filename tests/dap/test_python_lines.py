"""Programs that were imported from PyTorch, at the lines of Python."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest
from dap.client import Refused
from dap.test_data import children, scopes, values

import opstep

MODEL = """\
from torch import sigmoid


def gate(x, y):
    s = sigmoid(x)  # sigmoid
    return s * y  # product


class Block:
    def forward(self, hidden, mask=None):
        y = self.ln(hidden)  # norm
        y = self.fc(  # fc
            y
        )
        y = gate(y, hidden)  # gate
        return hidden + y  # residual


class Net:
    def forward(self, x):
        for block in self.h:
            x = block(x)  # call
        s = x.sum(-1)  # sum

        return s.log()  # log

    def untraced(self):
        return 0  # untraced
"""

PROGRAM = """\
param h.0.ln.weight: f32[4] = ones()
param h.1.ln.weight: f32[4] = full(value=2.0)

graph main(x: f32[2, 4]) -> f32[2] {{
  x_2 = Block(x, h.0.ln.weight) at "net.py":{call} in "h.0"
  x_3 = Block(x_2, h.1.ln.weight) at "net.py":{call} in "h.1"
  s = sum(x_3, axes=[1]) at "net.py":{sum}
  output = log(s) at "net.py":{log}
  return output
}}

graph Block(hidden: f32[2, 4], ln_weight: f32[4]) -> f32[2, 4] {{
  y = mul(hidden, ln_weight) at "net.py":{norm} in "ln"
  matmul = mul(y, 2.0) at "net.py":{argument} in "fc"
  y_2 = add(matmul, 1.0) at "net.py":{fc} in "fc"
  s = sigmoid(y_2) at "net.py":{sigmoid}, {gate}
  mul = mul(s, hidden) at "net.py":{product}, {gate}
  add = add(hidden, mul) at "net.py":{residual}
  return add
}}
"""

LINES = {
    name: number
    for number, text in enumerate(MODEL.splitlines(), 1)
    for name in re.findall(r"# (\w+)$", text)
}
LINES["argument"] = LINES["fc"] + 1


@pytest.fixture
def net(program, tmp_path) -> Path:
    program(MODEL, "net.py")
    return program(PROGRAM.format(**LINES))


@pytest.fixture
def net_py(net) -> str:
    return str(net.parent / "net.py")


@pytest.fixture
def entered(client, net):
    """Stopped at the first line."""
    start(client, net, stopOnEntry=True)
    client.expect_stop("entry")
    return client


def start(client, net, lines=(), **more) -> list[dict]:
    """Breakpoints are names of lines of Python, lines, or whole `SourceBreakpoint`s."""
    client.launch(net, graph="main", inputs={"x": "ones"}, **more)
    found = set_lines(client, net.parent / "net.py", lines)
    client.request("configurationDone")
    return found


def set_lines(client, path, lines) -> list[dict]:
    wanted = [w if isinstance(w, dict) else {"line": LINES.get(w, w)} for w in lines]
    source = {"path": str(path)}
    return client.request("setBreakpoints", source=source, breakpoints=wanted)["breakpoints"]


def here(client) -> tuple[str, ...]:
    """The names of the lines of the stack, innermost first."""
    names = {number: name for name, number in LINES.items()}
    return tuple(names.get(f["line"], str(f["line"])) for f in client.stack())


def steps(client, *commands) -> list[str]:
    """The innermost line after each."""
    found = []
    for command in commands:
        client.go(command)
        found.append(here(client)[0])
    return found


# --- the stack ------------------------------------------------------------------------------------


def test_frames_are_those_of_python(client, net, net_py):
    start(client, net, ["product"])
    client.expect_stop("breakpoint")
    frames = client.stack()
    assert [f["name"] for f in frames] == ["gate (h.0)", "Block.forward (h.0)", "Net.forward"]
    assert here(client) == ("product", "gate", "call")
    assert {f["source"]["path"] for f in frames} == {net_py}
    assert [f["canRestart"] for f in frames] == [False, True, True]
    place = frames[2]["source"]["adapterData"]
    assert place == {"name": "main", "path": str(net), "line": 5}
    client.go("continue", "breakpoint")
    assert client.stack()[1]["name"] == "Block.forward (h.1)"


def test_the_view_is_switched_at_any_moment(client, net, net_py):
    start(client, net, ["product"])
    client.expect_stop("breakpoint")
    python = client.stack()
    assert client.request("opstep/sourceView") == {"view": "graph"}
    assert client.expect("invalidated")["areas"] == ["stacks", "variables"]
    assert [f["name"] for f in client.stack()] == ["x_2 = Block", "main"]
    assert client.stack()[0]["source"]["path"] == str(net)
    client.go("next", "step")
    assert net.read_text().splitlines()[client.where()[1] - 1].startswith("  add = ")
    assert client.request("opstep/sourceView") == {"view": "auto"}
    assert here(client) == ("residual", "call")
    client.go("stepBack")
    assert [f["line"] for f in client.stack()] == [f["line"] for f in python]


@pytest.mark.parametrize("view, names", [
    ("graph", ["main"]), ("auto", ["Net.forward"]), ("python", ["Net.forward"]),
])  # fmt: skip
def test_the_view_is_an_argument_of_launch(client, net, view, names):
    start(client, net, stopOnEntry=True, sourceView=view)
    client.expect_stop("entry")
    assert [f["name"] for f in client.stack()] == names


def test_without_the_file_the_graph_is_shown(client, net):
    (net.parent / "net.py").unlink()
    assert start(client, net, ["call"], stopOnEntry=True)[0]["verified"] is False
    client.expect_stop("entry")
    assert client.where()[0] == "main" and "presentationHint" not in client.stack()[0]
    assert client.request("opstep/sourceView", view="python")
    assert client.stack()[0]["name"] == f"net.py:{LINES['call']}"


def test_graphs_that_were_not_imported_stand_back(client, program):
    program(MODEL, "net.py")
    text = 'graph main(x: f32[4]) -> f32[4] {\n  y = twice(x) at "net.py":23\n  return y\n}\n\n'
    text += "graph twice(x: f32[4]) -> f32[4] {\n  y = log(x)\n  z = log(y)\n  return z\n}\n"
    client.start(program(text), graph="main", inputs={"x": "zeros"}, filters=["inf"])
    client.expect_stop("exception")
    inner, outer = client.stack()
    assert inner["name"] == "y = twice" and inner["presentationHint"] == "subtle"
    assert inner["source"]["presentationHint"] == "deemphasize"
    assert (outer["name"], outer["line"]) == ("Net.forward", 23)


def test_a_file_that_has_changed_is_said_to_have(client, net, net_py):
    late = net.stat().st_mtime + 60
    os.utime(net_py, (late, late))
    start(client, net, ["norm"])
    client.expect_stop("breakpoint")
    assert {f["presentationHint"] for f in client.stack()} == {"subtle"}
    assert [f["name"] for f in client.stack()] == [
        f"net.py:{LINES['norm']} (h.0)", f"net.py:{LINES['call']}",
    ]  # fmt: skip
    assert client.output().count("net.py has changed since") == 1


# --- steps ----------------------------------------------------------------------------------------


def test_steps_go_by_lines(entered):
    assert steps(entered, "next", "next", "next") == ["call", "sum", "log"]
    assert steps(entered, "stepBack", "stepBack", "stepBack") == ["sum", "call", "call"]
    assert entered.go("stepBack")["reason"] == "entry"


def test_into_calls_and_out_of_them(entered):
    assert steps(entered, "stepIn") == ["norm"]
    assert steps(entered, "next", "next", "stepIn") == ["fc", "gate", "sigmoid"]
    assert here(entered) == ("sigmoid", "gate", "call")
    assert steps(entered, "next", "next") == ["product", "residual"]
    assert steps(entered, "next", "stepIn", "stepOut") == ["call", "norm", "sum"]
    assert here(entered) == ("sum",)


def test_a_function_is_left_by_stepping_out(client, net):
    start(client, net, ["sigmoid"])
    client.expect_stop("breakpoint")
    set_lines(client, net.parent / "net.py", [])
    assert steps(client, "stepOut", "stepOut") == ["residual", "call"]
    assert client.stack()[0]["name"] == "Net.forward"
    children_ = children(client, scopes(client)["Locals"])
    assert children_["x"]["type"] == "f32[2, 4] (x_2)"


def test_back_over_what_was_stepped_into(client, net):
    start(client, net, ["product"])
    client.expect_stop("breakpoint")
    assert steps(client, "stepBack", "stepBack") == ["sigmoid", "gate"]
    assert here(client) == ("gate", "call")
    assert steps(client, "stepBack", "stepBack", "stepBack") == ["fc", "norm", "call"]


def test_an_instruction_is_an_op(entered, net):
    steps(entered, "stepIn", "next")
    lines = []
    for _ in range(3):
        entered.go("next", granularity="instruction")
        lines.append(here(entered)[0])
    assert lines == ["fc", "sigmoid", "product"]


def test_granularity_line_is_a_statement(entered):
    entered.go("next", granularity="line")
    assert here(entered) == ("call",)
    entered.go("next", granularity="statement")
    assert here(entered) == ("sum",)


# --- breakpoints ----------------------------------------------------------------------------------


def test_a_line_stops_once_an_execution(client, net):
    (told,) = start(client, net, ["fc"])
    assert told["verified"] and told["line"] == LINES["fc"]
    client.expect_stop("breakpoint")
    assert client.stack()[0]["name"] == "Block.forward (h.0)"
    client.go("continue", "breakpoint")
    assert client.stack()[0]["name"] == "Block.forward (h.1)"
    client.request("continue", threadId=1)
    client.expect_end()


def test_each_turn_of_a_loop_over_modules_stops(client, net):
    start(client, net, ["call"])
    client.expect_stop("breakpoint")
    assert values(client, "Locals")["x"].startswith("[[1.0")
    client.go("continue", "breakpoint")
    assert children(client, scopes(client)["Locals"])["x"]["type"] == "f32[2, 4] (x_2)"
    client.request("continue", threadId=1)
    client.expect_end()


def test_a_call_and_what_it_calls_stop_one_after_the_other(client, net):
    told = start(client, net, ["gate", "sigmoid"])
    client.expect_stop("breakpoint")
    assert here(client) == ("gate", "call")
    stop = client.go("continue", "breakpoint")
    assert here(client) == ("sigmoid", "gate", "call")
    assert stop["hitBreakpointIds"] == [told[1]["id"]]
    client.go("reverseContinue", "breakpoint")
    assert here(client) == ("gate", "call")
    client.go("next", "breakpoint")
    assert here(client) == ("sigmoid", "gate", "call")


def test_a_breakpoint_moves_to_the_next_line_that_has_ops(client, net, net_py):
    lines = [LINES["call"] - 2, LINES["argument"], LINES["sum"] + 1, LINES["untraced"]]
    told = start(client, net, lines)
    assert [b.get("line") for b in told[:3]] == [LINES["call"], LINES["fc"], LINES["log"]]
    assert not told[3]["verified"] and told[3]["message"] == "no op came from this line"
    where = client.request(
        "breakpointLocations", source={"path": net_py}, line=1, endLine=LINES["gate"]
    )
    found = [b["line"] for b in where["breakpoints"]]
    assert found == sorted(LINES[n] for n in ("sigmoid", "product", "norm", "fc", "gate"))


def test_conditions_hit_counts_and_log_points(client, net):
    line = LINES["gate"]
    start(client, net, [
        {"line": line, "condition": "max(y) > 4"},
        {"line": LINES["norm"], "logMessage": "hidden is {hidden[0, 0]}, {max(self.ln.weight)}"},
        {"line": LINES["residual"], "hitCondition": "2"},
    ])  # fmt: skip
    client.expect_stop("breakpoint")
    assert client.stack()[0]["name"] == "Block.forward (h.1)" and here(client)[0] == "gate"
    assert "hidden is 1.0, 1.0\n" in client.output()
    assert re.search(r"hidden is 1\.9\d+, 2\.0\n", client.output())
    client.go("continue", "breakpoint")
    assert here(client) == ("residual", "call")


def test_data_breakpoints_on_variables(client, net):
    start(client, net, ["residual"])
    client.expect_stop("breakpoint")
    frame = client.stack()[0]["id"]
    told = client.request("dataBreakpointInfo", name="y", frameId=frame)
    assert told["dataId"] == "Block.mul"
    client.request("setDataBreakpoints", breakpoints=[{"dataId": told["dataId"]}])
    set_lines(client, net.parent / "net.py", [])
    client.go("continue", "data breakpoint")
    assert here(client) == ("product", "gate", "call")
    client.go("next", "step")  # it stood behind the op
    assert here(client) == ("residual", "call")


def test_run_to_a_line_and_go_to_one(entered, net_py):
    entered.request("opstep/runTo", source={"path": net_py}, line=LINES["residual"])
    entered.expect_stop("step")
    assert here(entered) == ("residual", "call")
    source = {"path": net_py}
    for line in ("norm", "gate"):
        (target,) = entered.request("gotoTargets", source=source, line=LINES[line])["targets"]
        entered.request("goto", threadId=1, targetId=target["id"])
        entered.expect_stop("goto")
        assert here(entered) == (line, "call")


# --- values ---------------------------------------------------------------------------------------


def test_variables_have_their_latest_values(client, net):
    start(client, net, ["residual"])
    client.expect_stop("breakpoint")
    assert list(scopes(client)) == ["Locals", "Inputs", "All values", "Params", "Op", "Memory"]
    found = children(client, scopes(client)["Locals"])
    assert {n: v.get("type") for n, v in found.items()} == {
        "self": None, "hidden": "f32[2, 4]", "y": "f32[2, 4] (mul)", "mask": None,
    }  # fmt: skip
    assert found["mask"]["value"] == "not known"
    assert list(values(client, "All values")) == ["y", "matmul", "y_2", "s", "mul"]
    assert list(children(client, found["self"])) == ["ln.weight"]
    outer = children(client, scopes(client, 1)["Locals"])
    assert set(outer) == {"self", "x", "block"} and outer["x"]["type"] == "f32[2, 4]"


def test_arguments_of_functions_are_what_was_passed(client, net):
    start(client, net, ["product"])
    client.expect_stop("breakpoint")
    found = children(client, scopes(client)["Locals"])
    assert {n: v["type"] for n, v in found.items()} == {
        "x": "f32[2, 4] (y_2)", "y": "f32[2, 4] (hidden)", "s": "f32[2, 4]",
    }  # fmt: skip


def evaluated(client, text, frame=0, **more) -> str:
    number = client.stack()[frame]["id"]
    return client.request("evaluate", expression=text, frameId=number, **more)["result"]


def test_names_in_expressions_are_pythons(client, net):
    start(client, net, ["residual"])
    client.expect_stop("breakpoint")
    assert evaluated(client, "y[0, 0]", context="hover") == evaluated(client, "mul[0, 0]")
    assert evaluated(client, "y_2[0, 0]") == "3.0"
    assert evaluated(client, "self.ln.weight", context="hover") == "[1.0, 1.0, 1.0, 1.0]"
    assert evaluated(client, "x[0, 0]", frame=1) == "1.0"
    for unknown in ("self.nothing", "mask", "s"):  # the graph has an s, which is another function's
        with pytest.raises(Refused):
            evaluated(client, unknown, context="hover")
    client.request("opstep/sourceView", view="graph")
    assert evaluated(client, "y[0, 0]") == "1.0"


def test_variables_are_set(client, net):
    start(client, net, ["residual"])
    client.expect_stop("breakpoint")
    number = scopes(client)["Locals"]["variablesReference"]
    client.request("setVariable", variablesReference=number, name="y", value="y * 0")
    assert evaluated(client, "max(mul)") == "0.0" and evaluated(client, "y_2[0, 0]") == "3.0"
    client.request("evaluate", expression="y[0, 1] = 7", frameId=client.stack()[0]["id"],
                   context="repl")  # fmt: skip
    assert evaluated(client, "mul[0, 1]") == "7.0"
    assert here(client) == ("residual", "call")


# --- trouble, and code ----------------------------------------------------------------------------


def test_a_nan_is_shown_at_the_line_of_python(client, net, net_py):
    client.launch(net, graph="main", inputs={"x": [[-9.0] * 4] * 2})
    client.request("setExceptionBreakpoints", filters=["nan-origin"])
    client.request("configurationDone")
    client.expect_stop("exception")
    assert here(client) == ("log",)
    told = client.request("exceptionInfo", threadId=1)
    assert told["details"]["stackTrace"] == f"at Net.forward ({net_py}:{LINES['log']})"
    assert "the result of log" in told["description"] and "\n" not in told["description"]
    (link, *_) = client.request("opstep/nanReport")["links"]
    assert (link["source"]["path"], link["line"]) == (net_py, LINES["log"])
    assert link["here"]
    client.go("stepBack", "step")
    assert here(client) == ("log",) and "output" not in values(client, "All values")


def test_the_disassembly_of_a_line_is_the_graph(client, net, net_py):
    start(client, net, ["gate"])
    client.expect_stop("breakpoint")
    pointer = client.stack()[0]["instructionPointerReference"]
    found = client.request("disassemble", memoryReference=pointer, instructionOffset=-3,
                           instructionCount=5)["instructions"]  # fmt: skip
    assert [i["instruction"] for i in found] == [
        "y = mul(hidden, ln_weight)", "matmul = mul(y, 2.0)", "y_2 = add(matmul, 1.0)",
        "s = sigmoid(y_2)", "mul = mul(s, hidden)",
    ]  # fmt: skip
    assert found[3]["location"]["path"] == net_py and found[3]["line"] == LINES["sigmoid"]
    client.request("opstep/sourceView", view="graph")
    code = client.stack()[0]["instructionPointerReference"]
    text = client.request("disassemble", memoryReference=code, instructionCount=1)
    assert "sigmoid" in text["instructions"][0]["instruction"]


def test_the_timeline_names_lines_of_python(entered, net_py):
    steps(entered, "stepIn", "next")
    points = entered.request("opstep/timeline")["points"]
    assert [(p["source"]["path"], p["line"]) for p in points] == [
        (net_py, LINES["call"]), (net_py, LINES["norm"]),
    ]  # fmt: skip


# --- beyond one graph's text ----------------------------------------------------------------------


def test_lines_of_the_text_stop_too(client, net):
    client.launch(net, graph="main", inputs={"x": "ones"})
    text = net.read_text().splitlines()
    line = next(k for k, t in enumerate(text, 1) if t.startswith("  y_2 = "))
    source = {"path": str(net)}
    client.request("setBreakpoints", source=source, breakpoints=[{"line": line}])
    client.request("configurationDone")
    client.expect_stop("breakpoint")
    assert here(client)[1:] == ("call",) and client.stack()[0]["line"] == LINES["fc"]
    client.go("next", "step")
    assert here(client) == ("gate", "call")


def test_the_program_is_read_again(client, net, net_py):
    start(client, net, ["residual"])
    client.expect_stop("breakpoint")
    text = net.read_text().replace("add(matmul, 1.0)", "add(matmul, 2.0)")
    net.write_text(f"# edited\n{text}")
    client.request("restartFrame", frameId=client.stack()[0]["id"])
    client.expect_stop("restart")
    assert here(client) == ("norm", "call")
    client.go("continue", "breakpoint")
    assert evaluated(client, "y_2[0, 0]") == "4.0" and here(client) == ("residual", "call")


def test_streams_have_stacks_of_their_own(client, net):
    start(client, net, ["gate"], streams=3)
    client.expect_stop("breakpoint")
    for thread in client.request("threads")["threads"]:
        assert client.stack(thread["id"])[-1]["name"] == "Net.forward"
    assert steps(client, "stepIn", "stepOut") == ["sigmoid", "residual"]


def test_a_gradient_has_the_lines_of_what_it_was_made_for(net):
    text = net.read_text().replace("-> f32[2] {", "-> f32[] {", 1)
    text = text.replace("  return output\n", "  loss = sum(output)\n  return loss\n", 1)
    program = opstep.loads(text, str(net)).with_grad("main", ["x"])
    inputs = {"x": np.ones((2, 4), "f4")}
    debugger = opstep.Debugger(program, "main_grad", inputs, stop_on_entry=True)
    debugger.view = "auto"
    stop, names = debugger.start(), []
    while stop.reason != "end":
        names.append((debugger.stack()[0].name, debugger.stack()[0].line))
        stop = debugger.go("in")
    assert names[0] == ("Block.forward", LINES["norm"])
    assert names[-1] == ("Block.forward backward", LINES["norm"])
    assert names.count(("gate", LINES["product"])) == 2
