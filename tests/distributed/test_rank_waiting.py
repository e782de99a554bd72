"""Ranks that do not come: who they are, and where they stand."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from opstep.distributed import gloo, meeting
from opstep.distributed.place import place_in
from opstep.distributed.starting import MISSED, Ended, start
from opstep.runtime.ir.diagnostics import OpstepError
from opstep.runtime.ir.errors import DeviceError, InputError

ROOT = Path(__file__).resolve().parents[2]

SCRIPT = '''
import os, sys, time
import opstep
from opstep.cli.main import main
from opstep.distributed import lookout
from opstep.distributed.gloo import joined
from opstep.distributed.place import place_in
from opstep.runtime.ir.diagnostics import OpstepError

TEXT = """graph main(x: f32[4]) -> f32[4] {
  y = all_reduce(x)
  return y
}
graph other(x: f32[4]) -> f32[4] {
  y = all_gather(x)
  z = slice(y, starts=[0], ends=[4])
  return z
}
"""
lookout.STUCK_S = 1.5
place = place_in(os.environ)
with joined(place, 4.0) as transport:
    program = opstep.loads(TEXT, "step.opg", ranks=3)
    program.run("main", {"x": [1.0] * 4})
    if place.rank == 1:
        time.sleep(8)
    try:
        program.run("other", {"x": [1.0] * 4})
    except OpstepError as error:
        print(error, file=sys.stderr, flush=True)
        sys.exit(3)
'''


@pytest.mark.slow
def test_a_rank_that_does_not_come_is_named_with_its_line(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with pytest.raises(Ended) as caught:
        start([sys.executable, str(script)], 3)
    ended = caught.value
    assert ended.code == MISSED
    elsewhere = "rank 1 is not here: it stands behind step.opg:2 (all_reduce)"
    first = min(ended.told, key=lambda r: "after 4 s" not in ended.told[r])
    assert f"rank {first} waits at step.opg:6 (all_gather) since" in ended.told[first]
    assert "step.opg:6:7: error: after 4 s" in ended.told[first]
    assert elsewhere in ended.told[first]


def test_variables_that_make_a_process_a_rank_are_told(port, monkeypatch, capfd):
    monkeypatch.setattr(meeting, "SILENT_S", 0.1)
    monkeypatch.setattr(gloo, "_MEET_S", 1.5)
    with pytest.raises(DeviceError, match=r"ranks 1, 2 did not come to .* within 1\.5 s") as caught:
        gloo.GlooTransport(at(0, 3, "127.0.0.1", port))
    reason = "RANK, WORLD_SIZE in the environment make this process a rank: unset them"
    assert reason in str(caught.value)
    told = capfd.readouterr().err
    assert "rank 0 of 3 waits for ranks 1, 2 at tcp:" in told
    assert reason in told


def at(rank: int, ranks: int, address: str, port: int, **more: str):
    environment = {"RANK": str(rank), "WORLD_SIZE": str(ranks), **more}
    place = place_in(environment | {"MASTER_ADDR": address, "MASTER_PORT": str(port)})
    assert place is not None
    return place


@pytest.fixture
def port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        return server.getsockname()[1]


def met(*places) -> list[str]:
    """What goes wrong for each of ranks that meet; empty where all is well."""

    def one(place) -> str:
        try:
            stores.append(meeting.meet(place, 20.0))
        except OpstepError as error:
            return str(error)
        return ""

    stores = []  # else that of rank 0 ends with it
    with ThreadPoolExecutor(len(places)) as pool:
        return list(pool.map(one, places))


@pytest.mark.parametrize("local_ranks", ["3", "2"])
@pytest.mark.parametrize("address", ["127.0.0.1", "localhost"])
def test_ranks_meet(address, port, local_ranks):
    more = {"LOCAL_WORLD_SIZE": local_ranks, "LOCAL_RANK": "0"}
    assert met(*(at(rank, 3, address, port, **more) for rank in (2, 0, 1))) == ["", "", ""]


def test_ranks_that_count_differently_are_told(port):
    told = met(at(0, 2, "127.0.0.1", port), at(1, 3, "127.0.0.1", port))
    assert "rank 1 is one of 3 ranks, and rank 0 one of 2" in "".join(told)


def test_two_processes_of_one_number_are_told(port):
    told = met(*(at(rank, 3, "127.0.0.1", port) for rank in (0, 1, 1, 2)))
    assert sorted(told)[:3] == ["", "", ""]
    assert "another process is rank 1 of 3, too" in sorted(told)[3]


def test_a_port_that_is_taken_is_told(port):
    with closing(socket.create_server(("127.0.0.1", port))):
        (told,) = met(at(0, 2, "127.0.0.1", port))
    assert f"rank 0 cannot listen at 127.0.0.1, port {port}: Address already in use\n" in told
    assert "MASTER_PORT" in told


def test_an_address_that_does_not_exist_is_told(capfd, monkeypatch):
    (told,) = met(at(0, 2, "no.such.machine.invalid", 29_501))
    assert "rank 0 cannot listen at no.such.machine.invalid, port 29501: " in told
    monkeypatch.setattr(meeting, "SILENT_S", 0.1)
    with pytest.raises(DeviceError, match="nothing answers there: "):
        meeting.meet(at(1, 2, "no.such.machine.invalid", 29_501), 1.0)
    (first, *_) = capfd.readouterr().err.splitlines()
    assert first.startswith("rank 1 of 2 waits for rank 0 at tcp://no.such.machine.invalid:29501")


@pytest.mark.parametrize("value", ["0", "65536", "http"])
def test_a_port_that_is_none_is_told(value):
    with pytest.raises(InputError, match=f"MASTER_PORT={value}"):
        at(0, 2, "127.0.0.1", value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rank", "ending", "foreign"),
    [("0", signal.SIGTERM, False), ("1", signal.SIGINT, False), ("1", signal.SIGTERM, True)],
)
def test_a_rank_that_waits_for_others_can_be_ended(rank, ending, foreign, port, tmp_path):
    """`foreign`: who listens there is not rank 0, and answers nothing."""
    server = socket.create_server(("127.0.0.1", port)) if foreign else None
    (tmp_path / "a.opg").write_text("graph main(x: f32[2]) -> f32[2] {\n  return x\n}\n")
    own = {"RANK": rank, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    process = subprocess.Popen(
        [sys.executable, "-m", "opstep", "run", "a.opg"], cwd=tmp_path, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **own}, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    try:
        assert f"rank {rank} of 2 waits for rank" in process.stderr.readline()
        process.send_signal(ending)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
        if server:
            server.close()
    assert process.returncode == 128 + ending, err
    assert "Traceback" not in err
