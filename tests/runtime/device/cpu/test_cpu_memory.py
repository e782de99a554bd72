"""What does not fit into memory is refused before it is begun, with its name."""

import numpy as np
import pytest

import opstep
from opstep.runtime.device.cpu import memory
from opstep.runtime.device.cpu.memory import CpuMemory
from opstep.runtime.ir.errors import DeviceError

MB = 1 << 20


def test_too_much_memory_is_refused_with_both_sizes():
    with pytest.raises(DeviceError, match=r"out of memory: .* are wanted for all, .* are free"):
        CpuMemory(1 << 50, "all")


def test_tensors_that_fit_one_by_one_but_not_together(monkeypatch):
    program = opstep.loads(
        "graph main(x: f32[N]) -> f32[] {\n  far = tile(x, repeats=[4])\n  again = exp(far)\n"
        "  s = sum(again)\n  return s\n}\n"
    )
    monkeypatch.setattr(memory, "available", lambda: 150 * MB)
    text = r"out of memory: 225.4 MiB are wanted for graph main, whose largest tensor is far, "
    with pytest.raises(DeviceError, match=text + r"f32\[26214400\], 150.0 MiB are free"):
        program.run(inputs={"x": np.ones(25 * MB // 4, np.float32)}, mode="debug")


@pytest.mark.parametrize(
    "own, files",
    [
        ("0::/jobs/7", {"jobs/7/memory.max": "max", "jobs/memory.max": 100 * MB}),
        ("0::/of/the/host", {"memory.max": 100 * MB}),  # as a container without its own view has it
        ("9:cpu:/\n4:memory:/jobs", {"memory/jobs/memory.limit_in_bytes": 100 * MB}),
    ],
    ids=["a parent's", "a container's", "of the first version"],
)
def test_limits_of_control_groups_count(tmp_path, monkeypatch, own, files):
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
        used = "memory.current" if path.name == "memory.max" else "memory.usage_in_bytes"
        (path.parent / used).write_text(f"{90 * MB}\n")
        spare = "inactive_file" if path.name == "memory.max" else "total_inactive_file"
        (path.parent / "memory.stat").write_text(f"anon 5\n{spare} {20 * MB}\n")
    (tmp_path / "own").write_text(f"{own}\n")
    monkeypatch.setattr(memory, "_GROUPS", tmp_path)
    monkeypatch.setattr(memory, "_OWN_GROUPS", tmp_path / "own")
    assert memory.available() == 30 * MB


def test_a_system_without_control_groups(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "_OWN_GROUPS", tmp_path / "none")
    assert memory.available() > 0
