"""Into a kernel: a client of opstep's server attaches to debugpy, and steps the kernel's lines."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from dap.client import Client, Refused
from dap.kernel_client import Kernel
from waiting import PATIENCE_S, runs, wait_until

import opstep
import opstep.kernels  # registers the ops
from opstep.runtime.debugger.kernel import process
from opstep.runtime.debugger.kernel.launches import kernel_launches
from opstep.runtime.device.single import one_step
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.op import OPS, complete

PROGRAM = """\
param scale: f32[4] = full(value=2.0)

graph main(x: f32[8, 4]) -> f32[8, 4], f32[8] {
  a = mul(x, scale)
  r = relu(a)          # break: relu
  h = features(r)      # break: call
  m = sum(h, axes=[1]) # break: sum
  v = reshape(h, shape=[32])  # break: view
  return h, m
}

graph features(x: f32[8, 4]) -> f32[8, 4] {
  y = add(x, 1.0)
  return y
}
"""


BAD_OP = """\
from opstep.runtime.device.cuda.compiling.names import cuda
from opstep.runtime.device.launch import Grid, Launch
from opstep.runtime.ir.op import Op


def shifted(x, y, n):
    i = cuda.grid(1)
    if i < n:
        y[i] = x[i + 1]


def on_cpu(x, y, lo, hi):
    for i in range(lo, hi):
        y[i] = x[i]


class beyond_the_end(Op):
    signature = "beyond_the_end(x: F)"
    grad = None

    def infer(x):
        return x

    def cpu(x, y):
        return Launch(on_cpu, x, y, units=x.size)

    def cuda(x, y):
        return Grid(shifted, x, y, x.size, grid=1, block=8)
"""


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "model.opg"
    path.write_text(PROGRAM)
    np.save(tmp_path / "x.npy", np.linspace(-1, 1, 32, dtype="f4").reshape(8, 4))
    return path


def test_a_step_in_target_starts_a_session_in_the_kernel(program):
    with Client.over_socket() as client:
        client.start(program, breakpoints=["relu"], inputs={"x": "x.npy"}, cwd=str(program.parent))
        client.expect_stop("breakpoint")
        frame = client.stack()[0]["id"]
        targets = client.request("stepInTargets", frameId=frame)["targets"]
        assert [t["label"] for t in targets] == [
            "kernel relu on the CPU, work item 0",
            "kernel relu, block (0,0,0), thread (0,0,0)",
        ]
        client.request("stepIn", threadId=1, targetId=targets[1]["id"])
        asked = client.expect_request("startDebugging")
        stop = client.expect_stop("step")
        assert stop["preserveFocusHint"], "the kernel is to be looked at"
        assert client.where()[1] == 5, "the graph's run stays where it is"
        configuration = asked["arguments"]["configuration"]
        assert asked["arguments"]["request"] == "attach"
        assert configuration["type"] == "opstep-kernel"
        assert configuration["connect"]["host"] == "127.0.0.1"
        client.answer(asked)

        kernel = Kernel(configuration)
        frame = kernel.stack()[0]
        text = Path(frame["source"]["path"]).read_text()
        assert text.splitlines()[frame["line"] - 2].startswith("def kernel(")
        assert kernel.locals()["x0"].startswith("f32[32]: -2.0, -1.87")  # x * scale
        assert kernel.value("tuple(cuda.threadIdx)") == "(0, 0, 0)"
        told = kernel.finish()
        assert "thread (0,0,0): runs as Python. Its end tells what it wrote.\n" in told
        assert "Result 0: 32 of 32 elements written [0] = 0.0" in told
        assert client.go("next", "step")
        client.request("continue", threadId=1)
        client.expect_end()


def test_breakpoints_in_functions_that_a_kernel_calls(program):
    with opstep.debug_kernel("relu", np.linspace(-1, 1, 600, dtype="f4"), thread=(70, 0, 0)) as job:
        kernel = Kernel(job.configuration)
        import opstep.kernels.pointwise.activations as source

        scalar = OPS["relu"].scalar.__code__
        assert scalar.co_filename == source.__file__
        assert kernel.breakpoint_at(source.__file__, scalar.co_firstlineno + 1)
        kernel.go("continue", "breakpoint")
        assert kernel.stack()[0]["name"] == "scalar"
        x = float(kernel.value("float(x)"))
        assert x == pytest.approx(np.linspace(-1, 1, 600)[280], abs=1e-6)  # four to a thread
        kernel.go("stepOut", "step")
        assert kernel.stack()[0]["name"] == "kernel"
        kernel.client.request("setBreakpoints", source={"path": source.__file__}, breakpoints=[])
        assert "600 of 600" in kernel.finish()
        assert job.wait(20)


def test_a_later_launch_finds_what_those_before_it_made():
    x = np.random.default_rng(0).standard_normal(16384).astype("f4")
    step, stored, results = one_step(OPS["cumsum"], [x], complete(OPS["cumsum"], {"axis": 0}))
    launches = kernel_launches(step, (*stored, *results), "cuda")
    label = f"kernel cumsum, launch 3 of 3 ({launches[2].function.__name__}), block (1,0,0)"
    assert launches[2].label((1, 0, 0)).startswith(label)
    assert launches[2].grid == (4, 1, 1)
    with opstep.debug_kernel("cumsum", x, attrs={"axis": 0}, launch=2, block=(1, 0, 0)) as job:
        told = Kernel(job.configuration).finish()
    assert "4,096 of 16,384 elements written [4096] = " in told
    first = float(told.partition("[4096] = ")[2].partition(",")[0])
    assert first == pytest.approx(float(x[:4097].sum(dtype="f8")), rel=1e-4)


def test_threads_meet_at_barriers_while_one_stands_still():
    """Sums of a row: the threads that are not looked at wait for the one that is."""
    x = np.arange(2 * 300, dtype="f4").reshape(2, 300)
    with opstep.debug_kernel("softmax", x, block=(0, 0, 0), thread=(3, 0, 0)) as job:
        kernel = Kernel(job.configuration)
        for _ in range(3):
            kernel.go("next", "step")
        threads = kernel.client.request("threads")["threads"]
        assert [t["name"] for t in threads if t["name"].startswith("block")] == [
            "block (0,0,0), thread (3,0,0)"
        ]
        assert "elements written" in kernel.finish()


def test_a_unit_of_a_kernel_of_the_cpu():
    x = np.linspace(-1, 1, 50, dtype="f4")
    with opstep.debug_kernel("exp", x, target="cpu", unit=7) as job:
        assert job.label == "kernel exp on the CPU, work item 7"
        kernel = Kernel(job.configuration)
        assert {"lo": "7", "hi": "8"}.items() <= kernel.locals().items()
        told = kernel.finish()
    value = float(told.partition("[7] = ")[2])
    assert "1 of 50 elements written" in told
    assert value == pytest.approx(np.exp(x[7]), rel=1e-6)


@pytest.mark.slow
def test_halves_integers_absent_operands_and_attributes_travel():
    x = np.linspace(-1, 1, 24).reshape(2, 3, 4, 1).astype(ml_dtypes.bfloat16)
    w = np.ones((5, 3, 2, 1), ml_dtypes.bfloat16)
    with opstep.debug_kernel("conv2d", x, w, None, attrs={"padding": (1, 0)}) as job:
        told = Kernel(job.configuration).finish()
    assert "elements written" in told
    attrs = {"dtype": opstep.loads("graph g(x: i64[2]) -> i64[2] { return x }")
             .graph("g").inputs[0].type.dtype}  # fmt: skip
    with opstep.debug_kernel("cast", np.array([1.5, -2.5], "f4"), attrs=attrs) as job:
        assert "[0] = 1, [1] = -2" in Kernel(job.configuration).finish()


def test_an_address_out_of_bounds_is_an_exception_in_the_kernel(tmp_path, monkeypatch):
    (tmp_path / "bad_op.py").write_text(BAD_OP)
    monkeypatch.syspath_prepend(str(tmp_path))
    import bad_op  # noqa: F401  # pyright: ignore[reportMissingImports]

    try:
        with opstep.debug_kernel("beyond_the_end", np.ones(8, "f4"), thread=(7, 0, 0)) as job:
            kernel = Kernel(job.configuration)
            assert kernel.stack()[0]["source"]["path"] == str(tmp_path / "bad_op.py")
            told = kernel.finish()
        assert "IndexError: element 8 of memory of 8 elements" in told
        assert "thread (7,0,0)" in told
    finally:
        del OPS["beyond_the_end"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "op, shapes, attrs, element",
    [
        ("exp", [(3, 500)], {}, (2, 499)),
        ("add", [(40, 30), (30,)], {}, (39, 7)),
        ("softmax", [(5, 300)], {}, (4, 17)),
        ("sum", [(6, 50)], {"axes": (1,)}, (5,)),
        ("matmul", [(40, 20), (20, 70)], {}, (39, 69)),
        ("transpose", [(33, 65)], {"perm": (1, 0)}, (64, 32)),
        ("conv2d", [(2, 3, 8, 8), (5, 3, 3, 3)], {"padding": (1, 1)}, (1, 4, 7, 7)),
    ],
)
def test_the_thread_that_writes_an_element(op, shapes, attrs, element):
    """It is found by running blocks, and is the one that stops."""
    arrays = [
        np.random.default_rng(k).standard_normal(s).astype("f4") for k, s in enumerate(shapes)
    ]
    with opstep.debug_kernel(op, *arrays, attrs=attrs, element=element) as job:
        assert job.label.startswith(f"kernel {op}, block (")
        block, thread = re.findall(r"\(\d+,\d+,\d+\)", job.label)
        kernel = Kernel(job.configuration)
        assert kernel.value("tuple(cuda.blockIdx)").replace(" ", "") == block
        assert kernel.value("tuple(cuda.threadIdx)").replace(" ", "") == thread
        assert "elements written" in kernel.finish()


def test_the_unit_that_writes_an_element():
    x = np.linspace(-1, 1, 60, dtype="f4").reshape(6, 10)
    with opstep.debug_kernel("exp", x, target="cpu", element=(3, 4)) as job:
        assert job.label == "kernel exp on the CPU, work item 34"
    for element, result, what in (
        ((6, 0), 0, "[6, 0] is not an element of f32[6, 10]"),
        ((1,), 0, "[1] is not an element"),
        ((0, 0), 1, "1 results; there is no 1"),
        ((-1, 0), 0, "[-1, 0] is not an element"),
    ):
        with pytest.raises(InputError) as error:
            opstep.debug_kernel("exp", x, element=element, result=result)
        assert what in str(error.value)


def test_a_nan_leads_to_the_thread_that_wrote_it(tmp_path):
    path = tmp_path / "nan.opg"
    path.write_text(
        "graph main(x: f32[20, 30]) -> f32[20, 30] {\n  y = log(x)\n  z = mul(y, 2.0)\n"
        "  return z\n}\n"
    )
    x = np.ones((20, 30), "f4")
    x[17, 3] = -1
    np.save(tmp_path / "x.npy", x)
    with Client.over_socket() as client:
        client.start(path, filters=["nan"], inputs={"x": "x.npy"}, cwd=str(tmp_path))
        client.expect_stop("exception")
        frame = client.stack()[0]["id"]
        targets = client.request("stepInTargets", frameId=frame)["targets"]
        assert [t["label"] for t in targets[:2]] == [
            "kernel log on the CPU, the thread that writes [17, 3]",
            "kernel log, the thread that writes [17, 3]",
        ]
        client.request("stepIn", threadId=1, targetId=targets[1]["id"])
        asked = client.expect_request("startDebugging")
        client.answer(asked)
        client.expect_stop("step")
        kernel = Kernel(asked["arguments"]["configuration"])
        lane = int(kernel.value("int(cuda.grid(1))"))
        assert lane == (17 * 30 + 3) // 4  # four elements to a thread
        kernel.finish()


def test_targets_where_there_is_no_kernel(program):
    with Client.over_socket() as client:
        client.start(
            program, breakpoints=["call", "view"], inputs={"x": "random"}, cwd=str(program.parent)
        )
        for label in (["graph features"], []):
            client.expect_stop("breakpoint")
            frame = client.stack()[0]["id"]
            found = client.request("stepInTargets", frameId=frame)["targets"]
            assert [t["label"] for t in found] == label
            client.request("continue", threadId=1)
        client.expect_end()


def test_a_thread_of_ones_choice(program):
    with Client.over_socket() as client:
        client.start(program, breakpoints=["sum"], inputs={"x": "random"}, cwd=str(program.parent))
        client.expect_stop("breakpoint")
        frame = client.stack()[0]["id"]
        found = client.request("opstep/kernels", {"frameId": frame}, check=False)["kernels"]
        assert found[0]["target"] == "cpu" and found[0]["units"] > 0
        assert found[1]["target"] == "cuda" and found[1]["grid"] and found[1]["line"] > 0
        for given in ({"thread": [5000, 0, 0]}, {"launch": 9}, {"target": "gpu"}):
            with pytest.raises(Refused):
                client.request("opstep/enterKernel", {"frameId": frame, **given}, check=False)
        given = {"frameId": frame, "thread": [1, 0, 0]}
        configuration = client.request("opstep/enterKernel", given, check=False)["configuration"]
        client.answer(client.expect_request("startDebugging"))
        client.expect_stop("step")
        kernel = Kernel(configuration)
        assert kernel.value("int(cuda.threadIdx.x)") == "1"
        kernel.finish()
        client.request("terminate")
        client.expect("terminated")


def test_clients_that_start_no_sessions(program):
    with Client.over_socket() as client:
        client.initialize(supportsStartDebuggingRequest=False)
        client.start(program, breakpoints=["relu"], inputs={"x": "random"})
        client.expect_stop("breakpoint")
        frame = client.stack()[0]["id"]
        target = client.request("stepInTargets", frameId=frame)["targets"][0]
        client.request("stepIn", threadId=1, targetId=target["id"])
        client.expect_stop("step")
        told = client.output("important")
        assert "attach a debugger of Python (debugpy) to 127.0.0.1:" in told
        port = int(told.rpartition(":")[2])
        Kernel({"connect": {"host": "127.0.0.1", "port": port}, "justMyCode": False}).finish()


def test_kernels_end_with_the_session_that_entered_them(program):
    client = Client.over_socket()
    client.start(program, breakpoints=["relu"], inputs={"x": "random"})
    client.expect_stop("breakpoint")
    for _ in range(2):
        target = client.request("stepInTargets", frameId=client.stack()[0]["id"])["targets"][0]
        client.request("stepIn", threadId=1, targetId=target["id"])
        client.expect_stop("step")
    first, second = (client.expect_request("startDebugging") for _ in range(2))
    client.answer(first)
    client.answer(second, success=False)
    kernel = Kernel(first["arguments"]["configuration"])
    client.request("threads")
    assert "starts no session" in client.output("important")
    client.close()
    kernel.client.expect("terminated")
    kernel.client.vanish()


def test_a_child_that_nobody_attaches_to_ends(monkeypatch, tmp_path):
    text = process.CHILD.read_text()
    assert "PATIENCE = 120.0" in text
    child = tmp_path / "child.py"
    child.write_text(text.replace("PATIENCE = 120.0", "PATIENCE = 0.5"))
    monkeypatch.setattr(process, "CHILD", child)
    with opstep.debug_kernel("relu", np.ones(8, "f4")) as job:
        assert job.wait(30)


def test_nothing_is_left_behind():
    job = opstep.debug_kernel("relu", np.ones(8, "f4"))
    folder = Path(job._folder.name)
    assert (folder / "job.npz").exists()
    assert folder.stat().st_mode & 0o077 == 0, "nobody else may read operands"
    job.close()
    assert not folder.exists()
    assert job.wait(0)
    code = (
        "import numpy, opstep, os\n"
        "job = opstep.debug_kernel('relu', numpy.ones(8, 'f4'))\n"
        "print(job._process.pid, flush=True)\n"
        "os._exit(1)\n"
    )
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S
    )
    pid = int(told.stdout)
    wait_until(lambda: not runs(pid))
