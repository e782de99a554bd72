"""Statistics that groups of ops take: those of ops one by one, to the bit."""

from __future__ import annotations

import numpy as np
import pytest

import opstep
from opstep.runtime.device.cuda.recording import measuring
from opstep.runtime.plan import fusing
from opstep.runtime.plan.plan import Fuse
from tests.kernels.pointwise import fused_programs
from tests.kernels.pointwise.fused_programs import NetworkWriter, Writer, bits
from tests.kernels.pointwise.test_measured import LARGE

COLUMNS = (
    "count, min, max, mean, std, l2, absmax, nan, posinf, neginf, zero, subnormal, unwritten, "
    "lowest, histogram"
)
ROWS = (
    f"select s.step, o.site, r.name, {COLUMNS} from stats s join ops o using (run, op) "
    "join results r using (run, op, result) order by 1, 2, 3, s.execution"
)


def recorded(text, inputs, path, fuses, **options):
    program = opstep.loads(text)
    with opstep.Recording(workspace=path, **options) as recording:
        recording.fuses = fuses
        with np.errstate(all="ignore"):
            result = program.run("main", inputs, device="cuda", recording=recording, steps=5)
    with opstep.Workspace(path) as ws:
        counts = ws.sql("select site, executions, fused_into from ops order by site, op").rows
        return [bits(np.asarray(a)) for a in result.outputs], ws.sql(ROWS).rows, counts


def check(text, inputs, tmp_path, **options) -> int:
    """How many ops ran in the kernel of another."""
    alone, its, apart = recorded(text, inputs, tmp_path / "a.db", Fuse.NOTHING, **options)
    result, ours, fused = recorded(text, inputs, tmp_path / "b.db", Fuse.ELEMENTWISE, **options)
    assert result == alone
    assert ours == its
    assert [row[:2] for row in fused] == [row[:2] for row in apart]
    return sum(into is not None for _, _, into in fused)


@pytest.mark.parametrize("large", [1, 1 << 30])
@pytest.mark.parametrize("seed", range(12))
def test_random_programs(seed, large, tmp_path, monkeypatch):
    monkeypatch.setattr(fusing, "WORTH_A_KERNEL_NS", 0)
    monkeypatch.setattr(fused_programs, "SHAPES", (*fused_programs.SHAPES, *LARGE))
    monkeypatch.setattr(measuring, "LARGE", large)
    writer = Writer(seed)
    check(writer.text(), writer.arrays(), tmp_path)


@pytest.mark.parametrize("large", [1, 1 << 30])
@pytest.mark.parametrize("seed", range(4))
def test_networks(seed, large, tmp_path, monkeypatch):
    monkeypatch.setattr(fusing, "WORTH_A_KERNEL_NS", 0)
    monkeypatch.setattr(measuring, "LARGE", large)
    writer = NetworkWriter(seed)
    check(writer.text(), writer.arrays(), tmp_path, stats_every=2)


def test_memory_that_is_shared_is_used_again(tmp_path, monkeypatch):
    monkeypatch.setattr(fusing, "WORTH_A_KERNEL_NS", 0)
    monkeypatch.setattr(measuring, "ROOM", 1)
    for seed in range(3):
        (tmp_path / str(seed)).mkdir()
        writer = Writer(seed)
        check(writer.text(), writer.arrays(), tmp_path / str(seed))


def test_ops_run_in_the_kernel_of_another(tmp_path, monkeypatch):
    monkeypatch.setattr(fusing, "WORTH_A_KERNEL_NS", 0)
    writer = NetworkWriter(0)
    assert check(writer.text(), writer.arrays(), tmp_path)


def test_some_tensors(tmp_path, monkeypatch):
    monkeypatch.setattr(fusing, "WORTH_A_KERNEL_NS", 0)
    writer = Writer(3)
    check(writer.text(), writer.arrays(), tmp_path, stats="v1*,relu:*")
