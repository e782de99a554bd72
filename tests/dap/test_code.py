"""Code of kernels, texts, and requests for views, over the wire."""

from __future__ import annotations

import base64
import importlib.util
from types import SimpleNamespace

import numpy as np
import pytest
from dap.client import Refused
from dap.test_data import INPUT, WIDE, children, scopes

from opstep.runtime.device.disassembly import cuda_resources, cuda_sections

needs_compiler = pytest.mark.skipif(
    importlib.util.find_spec("cuda") is None, reason="kernels for CUDA cannot be compiled here"
)


@pytest.fixture
def halving(client, loops):
    client.start(loops, graph="main", inputs=INPUT, breakpoints=["halving"])
    client.expect_stop("breakpoint")
    return client


def pointer(client) -> str:
    return client.stack()[0]["instructionPointerReference"]


def test_code_of_the_op_is_native_assembly_and_ir(halving):
    found = halving.request("disassemble", memoryReference=pointer(halving), instructionCount=9_000)
    texts = [i["instruction"] for i in found["instructions"] if "presentationHint" not in i]
    assert texts[0] == "; mul (mul): native assembly"
    assert "; mul (mul): LLVM IR" in texts
    assert any(t.strip().startswith("define ") for t in texts)
    assert any(t.strip().startswith("ret") for t in texts)
    assert "location" not in found["instructions"][0]  # its text is written, and in no file
    addresses = [int(i["address"], 16) for i in found["instructions"]]
    assert addresses == sorted(addresses) and len(set(addresses)) == len(addresses)


def test_instructions_before_and_behind_are_invalid(halving):
    given = {"memoryReference": pointer(halving), "instructionCount": 8, "instructionOffset": -3}
    found = halving.request("disassemble", given)["instructions"]
    assert [i.get("presentationHint") for i in found[:4]] == ["invalid"] * 3 + [None]
    by_address = halving.request(
        "disassemble", memoryReference=found[4]["address"], instructionCount=2
    )["instructions"]
    assert by_address == found[4:6]


@pytest.mark.parametrize(
    "reference", ["", "code:77", "code:x", "0x10", "-1", "0xffffffffffffffffff"]
)
def test_code_that_is_not_there(halving, reference):
    with pytest.raises(Refused):
        halving.request("disassemble", memoryReference=reference, instructionCount=4)
    with pytest.raises(Refused, match="at most"):
        halving.request("disassemble", memoryReference=reference, instructionCount=10**9)


def test_modules_are_kernels(halving):
    found = halving.request("modules", {})
    assert [m["name"] for m in found["modules"]] == ["mul", "mul", "add", "log"]
    assert found["totalModules"] == 4
    part = halving.request("modules", startModule=1, moduleCount=1)
    assert part["modules"] == found["modules"][1:2]


def test_the_whole_code_of_a_kernel(halving):
    (kernel,) = halving.request("opstep/kernelCode", frameId=halving.stack()[0]["id"])["kernels"]
    assert [s["title"] for s in kernel["sections"]] == ["native assembly", "LLVM IR"]
    assert "define" in kernel["sections"][1]["text"]


@needs_compiler
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_code_for_a_gpu_needs_none(program, arch):
    """PTX and what a kernel takes are known without a GPU; SASS where NVIDIA's tools are."""
    import opstep
    from opstep.dap.code import types_of
    from opstep.runtime.debugger.kernel.launches import lowered

    loaded = opstep.load(str(program(WIDE)))
    debugger = opstep.Debugger(loaded, "main", {"x": np.ones((300, 20), "f4")})
    plan = debugger.stack()[0].activation.plan if debugger.stack() else None
    assert plan is not None
    for step in plan.steps[:2]:
        for launch in lowered(step, types_of(plan, step), "cuda", arch)[0]:
            sass, ptx = cuda_sections(launch.kernel, arch)
            assert any(".visible .entry" in line for line in ptx.lines)
            assert sass.lines or "nvdisasm" in sass.obstacle
            taken = cuda_resources(launch.kernel, arch)
            assert taken.registers and 8 <= taken.registers <= 255
            assert taken.shared is not None


# --- texts ----------------------------------------------------------------------------------------


def test_texts_of_the_program(halving, loops):
    (source,) = halving.request("loadedSources", {})["sources"]
    assert source["path"] == str(loops)
    text = halving.request("source", sourceReference=0, source=source)
    assert text["content"] == loops.read_text()
    for wrong in ({"path": "/etc/passwd"}, {"path": ""}, {}):
        with pytest.raises(Refused):
            halving.request("source", sourceReference=0, source=wrong)
    with pytest.raises(Refused, match="no source 12"):
        halving.request("source", sourceReference=12)


# --- views ----------------------------------------------------------------------------------------


@pytest.fixture
def wide(client, program):
    client.start(program(WIDE), graph="main", inputs={"x": "ones"}, breakpoints=["imported"])
    client.expect_stop("breakpoint")
    return client


def array_of(found) -> np.ndarray:
    kind = {"f32": "<f4", "i32": "<i4", "bool": "?"}[found["dtype"]]
    return np.frombuffer(base64.b64decode(found["data"]), kind).reshape(found["shape"])


def test_slices_are_bytes(wide):
    whole = array_of(wide.request("opstep/tensorSlice", expression="a"))
    assert whole.shape == (300, 20)
    part = wide.request("opstep/tensorSlice", expression="a[10:20, ::5]")
    assert (array_of(part) == whole[10:20, ::5]).all() and part["shape"] == [10, 4]
    thin = wide.request("opstep/tensorSlice", expression="a", maxElements=100)
    assert thin["of"] == [300, 20] and np.prod(thin["shape"]) <= 100
    rows, columns = thin["steps"]
    assert (array_of(thin) == whole[::rows, ::columns]).all()
    assert array_of(wide.request("opstep/tensorSlice", expression="max(a)")).shape == ()
    with pytest.raises(Refused, match="not a tensor"):
        wide.request("opstep/tensorSlice", expression="stats(a)")
    with pytest.raises(Refused, match="at least 1"):
        wide.request("opstep/tensorSlice", expression="a", maxElements=0)


def test_what_a_tensor_is(wide):
    told = wide.request("opstep/tensorType", expression="a")
    assert told == {
        "type": "f32[300, 20]", "dtype": "f32", "shape": [300, 20], "unwritten": "7fc05eed",
    }  # fmt: skip
    told = wide.request("opstep/tensorType", expression="k > 0")
    assert told == {"type": "bool[300]", "dtype": "bool", "shape": [300]}
    with pytest.raises(Refused, match="there is no nowhere"):
        wide.request("opstep/tensorType", expression="nowhere")


def test_tensors_without_a_name(wide):
    a = children(wide, scopes(wide)["Values"])["a"]
    made = children(wide, children(wide, a, filter="named")["made by"])
    reference = made["b (w)"]["memoryReference"]
    found = wide.request(
        "opstep/tensorSlice", expression="value[3, :4] + 0 * x[3, :4]", memoryReference=reference
    )
    w = wide.request("opstep/tensorSlice", expression="w[3, :4]")
    assert (array_of(found) == array_of(w)).all()
    history = wide.request("opstep/statistics", expression="value", memoryReference=reference)
    assert history["type"] == "f32[300, 20]"
    with pytest.raises(Refused, match="not memory of a tensor"):
        wide.request("opstep/tensorType", expression="value", memoryReference="x")
    wide.go("stepBack", "step")
    with pytest.raises(Refused, match="went on since"):
        wide.request("opstep/tensorType", expression="value", memoryReference=reference)


def test_figures_and_histograms(wide):
    whole = array_of(wide.request("opstep/tensorSlice", expression="a")).astype("f8")
    told = wide.request("opstep/statistics", expression="a")
    assert told["statistics"]["count"] == 6000
    assert told["statistics"]["mean"] == pytest.approx(whole.mean(), abs=1e-9)
    found = wide.request("opstep/histogram", expression="a", bins=16)
    counts, edges = np.histogram(whole, 16)
    assert found["counts"] == counts.tolist() and found["edges"] == pytest.approx(edges.tolist())
    with pytest.raises(Refused, match="bins is 1 to"):
        wide.request("opstep/histogram", expression="a", bins=10**9)


def test_figures_that_f64_cannot_hold_are_texts(client, program):
    """The norm of four elements of 1e308 is infinite; JSON has no such number."""
    path = program("graph main(x: f64[4]) -> f64[4] {\n  y = neg(x)\n  return y\n}\n")
    client.start(path, inputs={"x": [1e308, 1e308, 1e308, -1e308]}, stopOnEntry=True)
    client.expect_stop("entry")
    told = client.request("opstep/statistics", expression="x")["statistics"]
    assert (told["l2"], told["max"]) == ("inf", 1e308)
    with pytest.raises(Refused, match="no histogram of this range"):
        client.request("opstep/histogram", expression="x")


def test_figures_over_the_turns_of_a_loop(halving):
    halving.go("continue", "breakpoint")
    halving.go("continue", "breakpoint")
    found = halving.request("opstep/statisticsHistory", name="x")["entries"]
    assert [(e["step"], e["statistics"]["max"]) for e in found] == [(0, 5.0), (1, 2.5), (2, 1.25)]
    with pytest.raises(Refused, match="has no value here"):
        halving.request("opstep/statisticsHistory", name="nowhere")


def test_versions_of_a_param(halving):
    halving.request("setExpression", expression="w", value="3")
    found = halving.request("opstep/statisticsHistory", name="w")["entries"]
    assert [e["statistics"]["max"] for e in found] == [1.0, 3.0]
    assert (
        array_of(halving.request("opstep/tensorSlice", expression="was(w) - w")).tolist()
        == [-2.0] * 4
    )


def test_the_plan_and_what_was_run(halving):
    plan = halving.request("opstep/plan")
    assert plan["graph"] == "halve" and plan["step"] == 0 and "y = mul(x, 0.5)" in plan["text"]
    run = halving.request("opstep/timeline")
    ops = [p["op"] for p in run["points"] if p["kind"] == "op"]
    assert ops == ["mul", "add", "while", "max", "greater"]
    assert run["points"][-1]["position"] == run["position"] - 1
    part = halving.request("opstep/timeline", start=1, count=2)["points"]
    assert part == run["points"][1:3]


def test_scopes_of_what_is_no_op(halving):
    halving.go("next", "step")
    assert SimpleNamespace(**scopes(halving)).Op["name"] == "Op"
    assert children(halving, scopes(halving)["Op"])["statement"]["value"] == "return y"
