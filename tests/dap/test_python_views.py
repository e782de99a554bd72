"""Views of tensors in sessions on Python scripts: parts, figures, tables and NaN reports."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest
from dap.client import Refused, markers_of
from dap.test_python_sessions import Session

pytest.importorskip("torch")

TENSORS = """\
import numpy
import torch


class Holder:
    def __init__(self):
        self.items = {(1, 2): torch.arange(6.0).reshape(2, 3), "b": torch.ones(2)}
        self.half = torch.tensor([1.5, float("nan"), float("-inf")], dtype=torch.bfloat16)


holder = Holder()
model = torch.nn.Sequential(torch.nn.Linear(3, 2))
wide = torch.arange(10_000_000, dtype=torch.int32).reshape(1000, 10_000)
eights = torch.tensor([0.5, 448.0]).to(torch.float8_e4m3fn)
array = numpy.array([[1.0, numpy.nan]])
sparse = torch.eye(3).to_sparse()
x = torch.zeros(4)
x[1] = 3  # break: write
x.add_(1)
y = 1  # break: end
"""
NAN = """\
import torch


def scores(x):
    big = torch.exp(x)
    return big - big  # break: born


x = torch.tensor([[1.0, 1000.0]])
y = scores(x)
print(y)  # break: after
"""


@pytest.fixture
def stopped(session, tmp_path):
    def at(text: str, *breakpoints: str, reason: str = "breakpoint", **more: Any) -> Session:
        path = tmp_path / "train.py"
        path.write_text(text)
        session.begin(path, *breakpoints, **more)
        session.at(reason)
        session.marks = markers_of(path)
        return session

    return at


def ask(session: Session, request: str, **of: Any) -> Any:
    frame = {"frameId": session.frames[0]["id"]}
    return session.request(f"opstep/{request}", **(frame | of))


def elements(found: dict[str, Any]) -> np.ndarray:
    import ml_dtypes

    names = {"f32": "f4", "i32": "i4", "i64": "i8", "f64": "f8", "bf16": ml_dtypes.bfloat16}
    data = base64.b64decode(found["data"])
    return np.frombuffer(data, names[found["dtype"]]).reshape(found["shape"])


def test_parts_of_tensors_are_read(stopped):
    session = stopped(TENSORS, "end")
    found = ask(session, "tensorType", expression="wide")
    assert (found["type"], found["dtype"]) == ("i32[1000, 10000]", "i32")
    assert found["language"] == "python" and "note" not in found
    part = ask(session, "tensorSlice", expression="(wide)[2, 5:20:5]")
    assert elements(part).tolist() == [20_005, 20_010, 20_015]
    thin = ask(session, "tensorSlice", expression="wide", maxElements=1000)
    assert thin["of"] == [1000, 10_000] and np.prod(thin["shape"]) <= 1000
    rows, columns = thin["steps"]
    assert elements(thin)[1, 1] == rows * 10_000 + columns
    with pytest.raises(Refused, match="take a part, or maxElements"):
        ask(session, "tensorSlice", expression="torch.cat([wide, wide])")
    half = ask(session, "tensorSlice", expression="holder.half")
    assert half["dtype"] == "bf16" and elements(half)[0] == 1.5
    spots = ask(session, "tensorSlice", expression="(holder.half)[0:3]", places="any")
    assert elements(spots).tolist() == [[1], [2]]
    spots = ask(session, "tensorSlice", expression="holder.half", places="any", first=1, count=5)
    assert elements(spots).tolist() == [[2]]
    spots = ask(session, "tensorSlice", expression="array", places="nan")
    assert elements(spots).tolist() == [[0, 1]]
    assert ask(session, "tensorType", expression="eights")["type"] == "float8_e4m3fn[2]"
    assert elements(ask(session, "tensorSlice", expression="eights")).tolist() == [0.5, 448]
    scalar = ask(session, "tensorSlice", expression="model[0].weight.sum() * 0 + 2")
    assert scalar["shape"] == [] and elements(scalar) == 2


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("nowhere", "NameError: name 'nowhere' is not defined"),
        ("x +", "SyntaxError"),
        ("holder", "a Holder is no tensor and no array"),
        ("sparse", "it is sparse_coo: look at its to_dense"),
        ("torch.empty(2, device='meta')", "it has a shape and no elements"),
        ("torch.ones(2).to(torch.complex64)", "it is complex"),
    ],
)
def test_what_is_no_tensor_is_refused(stopped, expression, why):
    session = stopped(TENSORS, "end")
    with pytest.raises(Refused, match=why):
        ask(session, "tensorType", expression=expression)


def test_figures_are_those_of_all_elements(stopped):
    session = stopped(TENSORS, "end")
    s = ask(session, "statistics", expression="wide")["statistics"]
    assert (s["count"], s["min"], s["max"], s["zero"]) == (10_000_000, 0, 9_999_999, 1)
    assert s["mean"] == pytest.approx(4_999_999.5) and s["std"] == pytest.approx(2886751.3459)
    assert sum(s["histogram"]) == 9_999_999
    assert s["histogram"][-s["lowestExponent"]] == 1  # the only one from 1 to 2
    s = ask(session, "statistics", expression="holder.half")["statistics"]
    assert (s["nan"], s["neginf"], s["posinf"], s["mean"], s["l2"]) == (1, 1, 0, 1.5, 1.5)
    huge = ask(session, "statistics", expression="torch.tensor([1e308] * 2, dtype=torch.double)")
    assert huge["statistics"]["mean"] == 1e308 and huge["statistics"]["std"] == 0
    bins = ask(session, "histogram", expression="wide", bins=4)
    assert bins["counts"] == [2_500_000] * 4 and bins["edges"][0] == 0
    bins = ask(session, "histogram", expression="holder.half", bins=2)
    assert bins["counts"] == [0, 1] and bins["finite"] == 1
    with pytest.raises(Refused, match="bins is 1 to 4096"):
        ask(session, "histogram", expression="x", bins=0)


def test_variables_are_opened_by_expressions_or_by_where_they_are(stopped):
    session = stopped(TENSORS, "end")
    reference = session.request("scopes", frameId=session.frames[0]["id"])["scopes"][0]
    names = variables(session, reference["variablesReference"])
    assert names["x"]["__vscodeVariableMenuContext"] == "tensor"
    assert names["x"]["evaluateName"] == "x"
    assert "__vscodeVariableMenuContext" not in names["model"]
    items = variables(session, names["holder"]["variablesReference"])["items"]
    first = next(v for v in variables(session, items["variablesReference"]).values()
                 if v["name"].startswith("(1, 2)"))  # fmt: skip
    of = {"expression": first.get("evaluateName", "value")}
    of |= {"memoryReference": first["memoryReference"]} if "memoryReference" in first else {}
    assert ask(session, "tensorType", **of)["type"] == "f32[2, 3]"
    with pytest.raises(Refused, match="not a memory reference"):
        ask(session, "tensorType", expression="value", memoryReference="elsewhere")
    with pytest.raises(Refused, match="has gone on"):
        ask(session, "tensorType", expression="value", memoryReference="123456:x")


def test_what_is_not_finite_is_coloured_for_clients_that_show_colours(session, tmp_path):
    path = tmp_path / "train.py"
    path.write_text(TENSORS)
    session.initialize(supportsANSIStyling=True)
    answer = session.send("launch", {"program": str(path), "cwd": str(tmp_path)})
    session.expect("initialized")
    session.configure(path, "end")
    assert session.response(answer)["success"]
    session.at("breakpoint")
    shown = session.evaluate("holder.half", "hover")
    assert shown.startswith("bf16[3]  \x1b[91m1 NaN, 1 -inf of 3\x1b[0m, the rest 1.5")
    assert "\x1b" not in session.evaluate("holder.half") + session.evaluate("x", "hover")
    reference = session.request("scopes", frameId=session.frames[0]["id"])["scopes"][0]
    holder = variables(session, reference["variablesReference"])["holder"]
    half = variables(session, holder["variablesReference"])["half"]
    assert half["value"] == shown


def variables(session: Session, reference: int) -> dict[str, Any]:
    found = session.request("variables", variablesReference=reference)["variables"]
    return {v["name"]: v for v in found}


def test_the_table_has_the_tensors_of_a_frame(stopped):
    session = stopped(TENSORS, "end")
    found = ask(session, "values")
    rows = {r["name"]: r for r in found["values"]}
    assert found["total"] == len(rows)
    assert {"holder.half", "x", "wide", "array", "eights"} <= set(rows)
    assert rows["model[0].weight"]["kind"] == "param" and "sparse" not in rows
    assert rows["x"]["text"].startswith("mean 1.75") and rows["x"]["statistics"]["max"] == 4
    assert "statistics" not in rows["wide"]  # too large to be taken unasked
    asked = ask(session, "values", names=["wide"])["values"]
    assert [r["name"] for r in asked] == ["wide"] and asked[0]["statistics"]["max"] == 9_999_999
    assert [r["name"] for r in ask(session, "values", start=1, count=2)["values"]] == [
        r["name"] for r in found["values"]
    ][1:3]


def test_a_nan_report_leads_to_the_infinity_that_it_was_made_of(stopped):
    session = stopped(NAN, reason="exception", filters=["nan-origin"])
    report = ask(session, "nanReport")
    born, cause = report["links"]
    assert (born["kind"], born["op"], born["count"]) == ("origin", "sub", 1)
    assert born["here"] and born["line"] == session.marks["born"]
    assert born["statement"].startswith("return big - big")
    assert [r["rule"] for r in born["rules"]] == ["inf - inf"]
    assert born["elements"][0]["of"][0]["value"] == "inf"
    assert (cause["op"], cause["name"], cause["bad"], cause["count"]) == ("exp", "big", "inf", 1)
    assert "overflow" in cause["rules"][0]["rule"] and not cause["here"]
    given = cause["operands"][0]["memoryReference"]
    x = elements(ask(session, "tensorSlice", expression="value", memoryReference=given))
    assert x.tolist() == [[1, 1000]]
    assert report["text"].startswith("train.py:")
    operand = born["operands"][0]
    part = ask(session, "tensorSlice", expression="value",
               memoryReference=operand["memoryReference"])  # fmt: skip
    assert np.isposinf(elements(part)[0, 1])
    with pytest.raises(Refused, match="graphs"):
        ask(session, "plan")


@pytest.mark.usefixtures("compiled_parts")
def test_one_goes_back_to_an_op_of_a_report(stopped):
    session = stopped(NAN, reason="exception", filters=["nan-origin"])
    cause = ask(session, "nanReport")["links"][1]
    of = {"path": cause["source"]["path"], "line": cause["line"]}
    session.request("opstep/goToOp", **of)
    assert session.at("goto")[0] == cause["line"]
    assert elements(ask(session, "tensorSlice", expression="x")).tolist() == [[1, 1000]]
    with pytest.raises(Refused, match=r"no time at which train\.py:1000 ran"):
        session.request("opstep/goToOp", path=of["path"], line=1000)


def test_any_tensor_has_a_report_of_its_nans(stopped):
    session = stopped(NAN, "after", reason="exception", filters=["nan-origin"])
    session.request("continue", threadId=1)
    session.at("breakpoint")
    found = ask(session, "nanReport", name="y")
    assert found["links"][0]["line"] == session.marks["born"]
    assert not ask(session, "nanReport", name="x")["found"]
    with pytest.raises(Refused, match="no tensor of floats"):
        ask(session, "nanReport", name="torch")


PAST = """\
import torch

class Box:
    pass


box = Box()
box.inner = small = torch.zeros(3)
large = torch.zeros(1000, 1000)
small += 1  # break: before
small[1] = float("nan")
large.fill_(2)
y = 1  # break: end
"""


@pytest.mark.usefixtures("compiled_parts")
def test_tensors_of_the_past_are_those_of_then(stopped):
    session = stopped(PAST, "end")
    while session.frames[0]["line"] > session.marks["before"]:
        session.request("stepBack", threadId=1)
        session.at("step")
    part = ask(session, "tensorSlice", expression="small")
    assert elements(part).tolist() == [0, 0, 0]
    assert "note" not in ask(session, "tensorType", expression="small")
    sums = ask(session, "statistics", expression="small + 1")["statistics"]
    assert sums["mean"] == 1 and sums["nan"] == 0
    value = elements(ask(session, "tensorSlice", expression="(large)[5, 0:2]")).tolist()
    assert value == [0, 0] and "note" not in ask(session, "tensorType", expression="large")
    rows = {r["name"]: r for r in ask(session, "values")["values"]}
    assert rows["small"]["text"] == "all 0"
    with pytest.raises(Refused, match="go forward"):
        ask(session, "nanReport", name="small")
    locals_ = session.request("scopes", frameId=session.frames[0]["id"])["scopes"][0]
    names = variables(session, locals_["variablesReference"])
    assert names["small"]["evaluateName"] == "small"
    inner = variables(session, names["box"]["variablesReference"])["inner"]
    of = {"expression": "value[0:2]", "memoryReference": inner["memoryReference"]}
    assert elements(ask(session, "tensorSlice", **of)).tolist() == [0, 0]
    session.request("continue", threadId=1)
    session.at("step")
    assert ask(session, "statistics", expression="small")["statistics"]["nan"] == 1
    of["memoryReference"] = f"{1 << 40}:x"
    with pytest.raises(Refused, match="has gone on"):
        ask(session, "tensorType", **of)


GRAPH = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))

    def forward(self, x):
        h = self.layers(x)
        scaled = h * 0
        return scaled / scaled  # break: born


net = Net()
loss = (net.layers[0].weight * 3).sum()  # of before: another graph
with torch.no_grad():
    plain = torch.ones(2)
print(plain)  # break: before
y = net(torch.ones(5, 3))
loss = y.mean()
print(loss)  # break: end


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x):
        for _ in range(2):
            x = self.layer(x).relu()
        return x


nets = [net(torch.rand(5, 3)) for _ in range(2)]
twice = Twice()
out = twice(nets[0] + nets[1])
print(out)  # break: twice
"""


def test_the_graph_of_what_has_run_is_folded_by_modules(stopped):
    session = stopped(GRAPH, "before", "end", "twice", filters=["nan-origin"])
    before = ask(session, "graph")
    assert [n["op"] for n in before["nodes"] if n["kind"] == "op"] == ["mul", "sum"]
    session.request("continue", threadId=1)
    session.at("exception")
    inside = ask(session, "graph")
    assert inside["graph"] == "Net" and inside["graphs"][:2] == ["Net", "layers"]
    nodes = {n["id"]: n for n in inside["nodes"]}
    ops = [n["op"] for n in nodes.values()]
    assert ops == ["layers", "mul", "div"]
    now = next(n for n in nodes.values() if n["now"])
    assert (now["op"], now["lines"][0] + 1) == ("div", session.marks["born"])
    assert now["values"] == [{"name": "div", "type": "f32[5, 2]"}]
    ways = {(nodes[e["from"]]["op"], nodes[e["to"]]["op"], e["value"]) for e in inside["edges"]}
    assert ways == {("layers", "mul", "h"), ("mul", "div", "scaled")}
    layers = ask(session, "graph", graph="layers")
    assert [n["op"] for n in layers["nodes"] if n["kind"] == "call"] == ["0", "1", "2"]
    linear = ask(session, "graph", graph="layers.0")
    weights = {n["name"]: n["values"][0]["type"] for n in linear["nodes"] if n["kind"] == "param"}
    assert weights == {"layers.0.weight": "f32[4, 3]", "layers.0.bias": "f32[4]"}
    assert not any(n["now"] for n in linear["nodes"])
    session.request("continue", threadId=1)
    session.at("breakpoint")
    whole = ask(session, "graph")
    assert [(n["name"], n["op"]) for n in whole["nodes"]] == [("", "Net"), ("loss", "mean")]
    session.request("continue", threadId=1)
    session.at("breakpoint")
    both = ask(session, "graph")["nodes"]  # two calls, and one that calls a layer twice
    assert [n["calls"] for n in both if n["kind"] == "call"] == [["Net"], ["Net #2"], ["Twice"]]
    twice = ask(session, "graph", graph="Twice")["nodes"]
    assert [n["calls"] for n in twice if n["kind"] == "call"] == [["layer"], ["layer #2"]]
    with pytest.raises(Refused, match="not in the graph"):
        ask(session, "graph", graph="nowhere")


def test_where_nothing_needs_gradients_there_is_no_graph(stopped):
    session = stopped(NAN, reason="exception", filters=["nan-origin"])
    with pytest.raises(Refused, match="nothing that ran needs gradients"):
        ask(session, "graph")


def test_pytorch_is_not_imported_into_a_script_without_it(session, tmp_path):
    path = tmp_path / "plain.py"
    path.write_text("x = 1\nprint(x)  # break: end\n")
    session.begin(path, "end")
    session.at("breakpoint")
    for request in ("graph", "nanReport"):
        with pytest.raises(Refused, match="the program has not imported PyTorch"):
            session.request(f"opstep/{request}", {"name": "x"} if request == "nanReport" else {})
    assert session.evaluate("'torch' in __import__('sys').modules") == "False"


def test_an_element_is_set(stopped):
    session = stopped(TENSORS, "end")
    frame = session.frames[0]["id"]
    session.request("setExpression", expression="x[1]", value='float("nan")', frameId=frame)
    assert ask(session, "statistics", expression="x")["statistics"]["nan"] == 1
    assert elements(ask(session, "tensorSlice", expression="x[0]")) == 1
