"""One timeline of all ranks: joined from those that each has written."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from types import SimpleNamespace

import diverging_ranks
import numpy as np
import pytest

from opstep.distributed.clocks import Reading, clock, read
from opstep.runtime.ir.mesh import Mesh
from opstep.trace.joining import join, packets
from opstep.trace.viewer.engine import Engine
from opstep.trace.viewer.summary import stragglers

ROOT = Path(__file__).resolve().parents[2]
OPSTEP = [sys.executable, "-m", "opstep"]
STEPS = 3

PROGRAM = """mesh data: 2, model: 2

graph main(x: f32[4]) -> f32[4], f32[4], f32[8] {
  y = mul(x, 2.0)
  a = all_reduce(y, over=data)
  b = all_reduce(a)
  c = all_gather(x, over=model)
  place = rank(over=data)
  first = equal(place, 0)
  d = cond(first, x, then=gives, else=takes)
  return b, d, c
}

graph gives(x: f32[4]) -> f32[4] {
  y = send(x, to=1, over=data)
  return y
}

graph takes(x: f32[4]) -> f32[4] {
  y = recv(x, source=0, over=data)
  return y
}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """With ``all.pftrace`` of four ranks, and of each rank its own."""
    found = tmp_path_factory.mktemp("timelines")
    (found / "step.opg").write_text(PROGRAM)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        for name in ("RANK", "WORLD_SIZE"):
            patch.delenv(name, raising=False)
        for target in ("all.pftrace", "own{rank}.pftrace"):
            command = [*OPSTEP, "run", "step.opg", "-i", "random", "--ranks", "4",
                       "--steps", str(STEPS), "--trace", target]  # fmt: skip
            ran = subprocess.run(command, cwd=found, capture_output=True, text=True, timeout=400)
            assert ran.returncode == 0, ran.stderr
            if target == "all.pftrace":
                assert "wrote all.pftrace" in ran.stderr
                assert "4 ranks, 4 runs" in ran.stderr
                assert [f.name for f in found.glob("*.pftrace")] == ["all.pftrace"]
                assert not [*found.glob(".*")]
    return found


OPS = """select s.id, s.ts, s.name, extract_arg(arg_set_id, 'debug.rank'),
    extract_arg(arg_set_id, 'debug.meeting'), root.name
    from slice s join track t on t.id = s.track_id join track device on device.id = t.parent_id
    join track root on root.id = device.parent_id where s.category = 'op'"""


@pytest.mark.slow
def test_each_rank_has_its_tracks_and_ops(folder):
    with Engine(folder / "all.pftrace") as engine:
        found = Counter(root.partition(":")[0] for *_, root in engine.query(OPS).rows)
        clocks = engine.query("select count(distinct snapshot_id) from clock_snapshot").rows
    own = []
    for rank in range(4):
        with Engine(folder / f"own{rank}.pftrace") as engine:
            own.append(engine.query("select count(*) from slice where category = 'op'").rows[0][0])
    assert [found[f"rank {k}"] for k in range(4)] == own
    assert clocks == [(1,)]


def test_what_ranks_do_together_is_joined_by_arrows(folder):
    with Engine(folder / "all.pftrace") as engine:
        ops = engine.query(OPS).rows
        flows = {
            frozenset(pair) for pair in engine.query("select slice_out, slice_in from flow").rows
        }
    met: dict[str, list[tuple[int, int, str, int]]] = {}
    for id, ts, name, rank, meeting, root in ops:
        if meeting is None:
            assert name.partition(" = ")[2] not in ("all_reduce", "all_gather", "send", "recv")
            continue
        assert root.startswith(f"rank {rank}:")
        met.setdefault(meeting, []).append((ts, id, name.rpartition("/")[2], rank))
    together = Counter(
        (frozenset(name for _, _, name, _ in some), frozenset(rank for *_, rank in some))
        for some in met.values()
    )
    pairs = {"data": ({0, 2}, {1, 3}), "model": ({0, 1}, {2, 3})}
    expected = {(frozenset({"b = all_reduce"}), frozenset(range(4))): STEPS}
    for axis, names in (("data", {"a = all_reduce"}), ("model", {"c = all_gather"}),
                        ("data", {"y = send", "y = recv"})):  # fmt: skip
        expected |= {(frozenset(names), frozenset(some)): STEPS for some in pairs[axis]}
    assert together == expected
    for some in met.values():
        ordered = [id for _, id, *_ in sorted(some)]
        assert all(frozenset(pair) in flows for pair in pairwise(ordered))


def test_who_came_late(folder):
    shown = subprocess.run(
        [*OPSTEP, "trace", str(folder / "all.pftrace"), "summary", "--json"],
        capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    ranks = json.loads(shown.stdout)["ranks"]
    assert [r["rank"] for r in ranks] == [0, 1, 2, 3]
    assert [r["met"] for r in ranks] == [4 * STEPS] * 4
    assert sum(r["last"] for r in ranks) == 7 * STEPS  # one is, each time
    assert sum(r["held_up_ns"] for r in ranks) == sum(r["waited_ns"] for r in ranks) > 0


def test_the_one_who_is_late_is_named(folder, tmp_path):
    """Rank 3 on a clock that is an hour late: longer than a busy machine holds up another."""
    mesh = Mesh((("data", 2), ("model", 2)), True)
    files = {k: folder / f"own{k}.pftrace" for k in range(4)}
    late = 3600 * 10**9
    join(tmp_path / "late.pftrace", files, mesh, {3: lambda ns: ns + late})
    with Engine(tmp_path / "late.pftrace") as engine:
        found = stragglers(engine)
    assert [r.last for r in found if r.rank == 3] == [4 * STEPS]
    assert found[3].held_up_ns > (1 + 3 + 1 + 1) * STEPS * (late // 2)
    assert found[3].waited_ns == 0
    assert found[3].op == "b = all_reduce"  # three wait there
    assert (Path(found[3].file).name, found[3].line) == ("step.opg", 6)


@pytest.mark.slow
def test_a_timeline_that_is_cut_off_is_taken_as_far_as_it_goes(folder, tmp_path):
    whole = (folder / "own1.pftrace").read_bytes()
    mesh = Mesh((("data", 2), ("model", 2)), True)
    counts = []
    for size in (0, 1, len(whole) // 2, len(whole) - 1, len(whole)):
        (tmp_path / "cut.pftrace").write_bytes(whole[:size])
        files = {0: folder / "own0.pftrace", 1: tmp_path / "cut.pftrace"}
        target = tmp_path / "joined.pftrace"
        assert join(target, files, mesh, {}) == target.stat().st_size
        counts.append(sum(1 for _ in packets(target)))
        with Engine(target) as engine:
            assert engine.query("select count(*) from slice where category = 'op'").rows[0][0]
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]


class Between:
    """One of two ranks that are threads, as `runtime.device.ranks` has them."""

    def __init__(self, index: int, queues: list[SimpleQueue]):
        self.index, self.size, self._queues = index, 2, queues

    def send(self, array, to):
        self._queues[to].put(np.array(array))

    def recv(self, like, source):
        return self._queues[self.index].get()


def test_clocks_of_two_machines():
    """Each look at a clock takes 100 ns; rank 1's is 5 s ahead."""
    queues = [SimpleQueue(), SimpleQueue()]
    time = SimpleNamespace(ns=0)

    def now(ahead: int) -> int:
        time.ns += 100
        return time.ns + ahead

    other = Thread(target=read, args=(Between(1, queues), lambda: now(5_000_000_000)))
    other.start()
    found = read(Between(0, queues), lambda: now(0))[1]
    other.join()
    assert found == Reading(found.ours + 5_000_000_000, found.ours, 100)


def test_clocks_that_drift():
    at = clock(Reading(1_000, 500, 1), Reading(1_001_000, 1_000_600, 1))  # 100 ns in a ms
    assert [at(ns) for ns in (1_000, 501_000, 1_001_000)] == [500, 500_550, 1_000_600]
    assert clock(Reading(1_000, 500, 1), Reading(1_000, 500, 1))(2_000) == 1_500


@pytest.mark.slow
def test_training_has_one_timeline_of_all_ranks(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    diverging_ranks.write(tmp_path, diverging_ranks.STEADY)
    code, _, err = diverging_ranks.train(tmp_path, "--trace", "run.pftrace")
    assert code == 0, err
    assert "2 ranks, 2 runs" in err
    assert [f.name for f in tmp_path.glob("*.pftrace")] == ["run.pftrace"]
    with Engine(tmp_path / "run.pftrace") as engine:
        rows = engine.query(OPS).rows
    counts = Counter((row[3], row[2]) for row in rows if row[4] is not None)
    steps = diverging_ranks.ROWS // diverging_ranks.BATCH
    assert {rank for rank, _ in counts} == {0, 1} and set(counts.values()) == {steps}
