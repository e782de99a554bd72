"""Into the kernels of a run on a GPU: operands come from its memory, the kernel runs here."""

from __future__ import annotations

import numpy as np
import pytest
from dap.kernel_client import Kernel

import opstep
from opstep.api.debugging import Debugger
from opstep.runtime.debugger.kernel.process import KernelProcess
from opstep.runtime.debugger.kernel.stop import KernelsAtStop

pytest.importorskip("debugpy")

TEXT = """\
param w: f16[64, 64] = normal()

graph main(x: f16[64, 64]) -> f16[64, 64] {
  a = mul(x, 2.0)
  b = matmul(a, w)
  c = relu(b)
  return c
}
"""


def test_operands_come_from_the_gpu():
    program = opstep.loads(TEXT)
    x = np.linspace(-1, 1, 4096).reshape(64, 64).astype("f2")
    debugger = Debugger(program, "main", {"x": x}, device="cuda", stop_on_entry=True)
    debugger.start()
    for _ in range(2):
        debugger.go("over")
    here = KernelsAtStop(debugger.stack()[0])
    assert [k.target for k in here.launches] == ["cuda"]
    assert here.launches[0].op == "relu" and here.launches[0].obstacle == ""
    with KernelProcess(here.job(here.launches[0], thread=(1, 0, 0))) as job:
        kernel = Kernel(job.configuration)
        product = (x * np.float16(2)).astype("f4") @ program.params["w"].astype("f4")
        shown = kernel.locals()["x0"]
        assert shown.startswith("f32[4096]: ")
        first = float(shown.partition(": ")[2].partition(",")[0])
        assert first == pytest.approx(product[0, 0], rel=2e-2, abs=1e-1)
        kernel.finish()


def test_tensor_cores_run_in_the_simulator():
    program = opstep.loads(TEXT)
    debugger = Debugger(
        program, "main", {"x": np.ones((64, 64), "f2")}, device="cuda", stop_on_entry=True
    )
    debugger.start()
    debugger.go("over")
    here = KernelsAtStop(debugger.stack()[0])
    assert [(k.op, k.obstacle) for k in here.launches][:1] == [("matmul", "")]
    with KernelProcess(here.job(here.launches[0])) as job:
        assert "elements written" in Kernel(job.configuration).finish()
