"""Runs on a simulated GPU that are recorded: groups of ops, and statistics in their kernels."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from test_cuda_tape import TapedDevice

import opstep
from opstep.api import devices
from opstep.api.devices import Kind
from opstep.runtime.device.cuda.compiling.target import targeting
from opstep.runtime.device.cuda.lowering import Lowering
from opstep.runtime.device.cuda.recording import measuring
from opstep.runtime.device.cuda.simulator import simulator
from opstep.runtime.plan import fusing
from opstep.runtime.plan.plan import Fuse
from opstep.trace.viewer.engine import Engine
from tests.kernels.pointwise import fused_programs
from tests.kernels.pointwise.fused_programs import Writer, bits
from tests.kernels.pointwise.test_measured import LARGE

FIGURES = (
    "count, min, max, mean, std, l2, absmax, nan, posinf, neginf, zero, subnormal, unwritten, "
    "lowest, histogram"
)
ROWS = (
    f"select s.step, o.site, r.name, {FIGURES} from stats s join ops o using (run, op) "
    "join results r using (run, op, result) order by 1, 2, 3, s.execution"
)


def memory(address: int, nbytes: int) -> np.ndarray:
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))


class SimulatedDevice(TapedDevice):
    """Whose kernels are those of a GPU, thread by thread."""

    name = "simulated"

    def prepare(self, step, types):
        with targeting("sm_90"):
            launches, size = Lowering(step, types).prepared()
        nbytes = [t.nbytes if t is not None else 0 for t in types]
        return [(launch, nbytes, size) for launch in launches], size

    def takes(self, step, types):
        return step.op.is_taken(*Lowering(step, types).args(), **step.attrs)

    def bind(self, launches, addresses, workspace):
        return [self._work(*launch, addresses, workspace) for launch in launches]

    def _work(self, launch, nbytes, size, addresses, workspace):
        given = [memory(a, n) for a, n in zip(addresses, nbytes, strict=True)]
        shared = memory(workspace, size + 8) if size else np.zeros(8, np.uint8)
        return lambda stream: simulator.run(launch, given, shared)


@pytest.fixture
def record(monkeypatch, tmp_path):
    """Runs a program there, several steps; (outputs, rows of statistics, rows of ops)"""
    kind = Kind("simulated", lambda number, setup: SimulatedDevice(), gpu=True)
    monkeypatch.setattr(devices, "KINDS", [*devices.KINDS, kind])
    monkeypatch.setattr(fusing, "WORTH_A_KERNEL_NS", 0)

    def recorded(text, inputs, fuses, steps=2, **options):
        path = tmp_path / f"{fuses.name}.db"
        with opstep.Recording(workspace=path, **options) as recording:
            recording.fuses = fuses
            found = opstep.loads(text).run(
                "main", inputs, device="simulated", recording=recording, steps=steps
            )
        with opstep.Workspace(path) as ws:
            ops = ws.sql("select site, executions, fused_into, total_ns from ops where op >= 0")
            return [bits(np.asarray(a)) for a in found.outputs], ws.sql(ROWS).rows, ops.rows

    return recorded


def check(record, text, inputs, **options):
    """The rows of ops."""
    alone, its, apart = record(text, inputs, Fuse.NOTHING, **options)
    found, ours, ops = record(text, inputs, Fuse.ELEMENTWISE, **options)
    assert found == alone
    assert ours == its
    assert sorted(row[:2] for row in ops) == sorted(row[:2] for row in apart)
    assert not any(into is not None for *_, into, _ in apart)
    for _, _, into, total in ops:
        assert (into is None) == (total is not None)
    return ops


def test_small_tensors_lie_together(record):
    writer = Writer(0, ops=8)
    ops = check(record, writer.text(), writer.arrays())
    assert any(into is not None for *_, into, _ in ops)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3, 4])
def test_kernels_take_the_statistics_of_large_ones(record, monkeypatch, seed):
    monkeypatch.setattr(measuring, "LARGE", 1)
    monkeypatch.setattr(fused_programs, "SHAPES", LARGE)
    writer = Writer(seed, ops=6)
    check(record, writer.text(), writer.arrays())


def test_what_shared_memory_has_no_room_for_is_computed_before(record, monkeypatch):
    monkeypatch.setattr(measuring, "ROOM", 1600)
    check(record, NETWORK, given())
    monkeypatch.setattr(measuring, "ROOM", 1)
    check(record, NETWORK.replace("f32", "f64"), {n: a.astype("f8") for n, a in given().items()})


NETWORK = """graph main(x: f32[2, 4, 6, 6], w: f32[4, 4, 3, 3], g: f32[4], b: f32[4], m: f32[4],
    v: f32[4]) -> f32[2, 4, 6, 6], f32[2, 4] {
  c = conv2d(x, w, padding=[1, 1])
  n = batch_norm(c, g, b, m, v)
  a = add(n, x)
  y = relu(a)
  d = conv2d(y, w, padding=[1, 1])
  z = mean(d, axes=[2, 3], keepdims=false)
  return y, z
}
"""


def given():
    rng = np.random.default_rng(0)
    shapes = {"x": (2, 4, 6, 6), "w": (4, 4, 3, 3), "g": 4, "b": 4, "m": 4, "v": 4}
    return {n: np.abs(rng.standard_normal(s)).astype("f4") for n, s in shapes.items()}


@pytest.mark.parametrize("large", [1, 1 << 30])
def test_what_a_convolution_gives_is_looked_at_where_it_is_read(record, monkeypatch, large):
    monkeypatch.setattr(measuring, "LARGE", large)
    ops = check(record, NETWORK, given())
    assert [site for site, _, into, _ in ops if into is not None] == ["main/n", "main/a"]


def test_some_tensors_in_some_steps(record):
    ops = check(record, NETWORK, given(), steps=3, stats="n,relu:*,d", stats_every=2)
    assert {count for _, count, *_ in ops} == {2}


def test_ops_of_a_workspace_and_a_timeline_have_the_same_numbers(record, tmp_path):
    record(NETWORK, given(), Fuse.ELEMENTWISE, trace=tmp_path / "run.pftrace")
    with opstep.Workspace(tmp_path / "ELEMENTWISE.db") as ws:
        ops = dict(ws.sql("select site, op from ops where op >= 0 and fused_into is null").rows)
    op, site = (f"extract_arg(arg_set_id, 'debug.{name}')" for name in ("op", "site"))
    with Engine(tmp_path / "run.pftrace") as engine:
        rows = engine.query(f"select {site}, {op} from slice where category = 'op'").rows
    assert len(rows) == 8 and all(ops[site] == op for site, op in rows)
