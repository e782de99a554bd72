"""Ranks that do not come: who they are, and where they stand."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from opstep.distributed import gloo, lookout
from opstep.distributed.place import place_in
from opstep.distributed.starting import MISSED, Ended, start
from opstep.runtime.ir.errors import DeviceError

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


def test_variables_that_make_a_process_a_rank_are_told(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(lookout, "SILENT_S", 0.1)
    monkeypatch.setattr(gloo, "_MEET_S", 1.5)
    environment = {"RANK": "0", "WORLD_SIZE": "3", "OPSTEP_STORE": str(tmp_path / "meeting")}
    place = place_in(environment)
    assert place is not None
    with pytest.raises(DeviceError, match=r"ranks 1, 2 did not come within 1\.5 s") as caught:
        gloo.GlooTransport(place)
    reason = "RANK, WORLD_SIZE in the environment make this process a rank: unset them"
    assert reason in str(caught.value)
    told = capfd.readouterr().err
    assert "rank 0 of 3 waits for ranks 1, 2 at file:" in told
    assert reason in told
