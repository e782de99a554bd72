"""What an op launches, which of it can be entered, and what is said where it cannot."""

from __future__ import annotations

import builtins

import numpy as np
import pytest

import opstep
import opstep.kernels  # registers the ops
from opstep.runtime.debugger.kernel import process
from opstep.runtime.debugger.kernel.launches import MOST_WORK, kernel_launches
from opstep.runtime.device.single import one_step
from opstep.runtime.ir.errors import DeviceError, InputError
from opstep.runtime.ir.op import OPS, complete


def test_the_wanted_thread_is_told_apart_and_checked():
    x = np.ones(10, "f4")
    for more, what in (
        ({"thread": (256, 0, 0)}, "thread (256,0,0) is not within (256,1,1)"),
        ({"block": (0, -1, 0)}, "block (0,-1,0) is not within (1,1,1)"),
        ({"launch": 1}, "relu makes 1 launches on cuda; there is no 1"),
        ({"target": "tpu"}, "target is 'tpu'"),
        ({"target": "cpu", "unit": 10}, "work item 10 is none of the 10"),
    ):
        with pytest.raises(InputError, match=None) as error:
            opstep.debug_kernel("relu", x, **more)
        assert what in str(error.value)
    with pytest.raises(InputError, match="there is no op reluu"):
        opstep.debug_kernel("reluu", x)
    with pytest.raises(InputError, match="matmul"):
        opstep.debug_kernel("matmul", x)
    with pytest.raises(InputError, match="complex64"):
        opstep.debug_kernel("relu", x.astype("c8"))


def test_kernels_that_only_a_compiler_can_make_say_so():
    a = np.ones((64, 64), "f4")
    step, stored, results = one_step(OPS["matmul"], [a, a], complete(OPS["matmul"], {}))
    cpu = kernel_launches(step, (*stored, *results), "cpu")
    assert any("exists only compiled" in k.obstacle for k in cpu)
    cuda = kernel_launches(step, (*stored, *results), "cuda")
    assert [k.obstacle for k in cuda] == [""] * len(cuda)
    with pytest.raises(InputError, match="exists only compiled"):
        opstep.debug_kernel("matmul", a, a, target="cpu", launch=len(cpu) - 1)


def test_what_needs_too_much_before_it_is_not_offered():
    x = np.ones((4, MOST_WORK // 2), "f4")
    step, stored, results = one_step(OPS["sum"], [x], complete(OPS["sum"], {"axes": (1,)}))
    *_, last = kernel_launches(step, (*stored, *results), "cuda")
    assert last.count > 1 and "too much to simulate" in last.obstacle


def test_every_op_of_the_language_has_kernels_that_can_be_entered():
    """Elementwise ops on a vector: each has a kernel without an obstacle."""
    x = np.ones(40, "f4")
    blocked = []
    for name, op in OPS.items():
        if [o.kind for o in op.operands] != ["F"] or any(a.required for a in op.attrs):
            continue
        try:
            step, stored, results = one_step(op, [x], complete(op, {}))
        except Exception:
            continue  # not for vectors
        if op.traits.reinterprets:
            continue
        launches = kernel_launches(step, (*stored, *results), "cuda")
        if not launches or any(k.obstacle for k in launches):
            blocked.append((name, [k.obstacle for k in launches]))
    assert blocked == []


def test_without_debugpy_it_is_said_how_to_get_it(monkeypatch):
    monkeypatch.setattr(process.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DeviceError) as error:
        opstep.debug_kernel("relu", np.ones(8, "f4"))
    assert "pip install 'opstep[debug]'" in str(error.value)


def test_a_child_that_cannot_start_says_why(monkeypatch, tmp_path):
    child = tmp_path / "child.py"
    child.write_text("raise SystemExit('out of luck')\n")
    monkeypatch.setattr(process, "CHILD", child)
    with pytest.raises(DeviceError, match="out of luck"):
        opstep.debug_kernel("relu", builtins.list([1.0, 2.0]))
