"""Ranks as processes of this machine, over Gloo."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import rank_scenes
from safetensors.numpy import load_file
from waiting import wait_until

RUN = [sys.executable, "-m", "opstep", "run"]

ALL = """mesh data: 2

graph main(x: f32[4, 2]) -> f32[4, 2], f32[2, 2], f32[8, 2], f32[2, 4], f32[4, 2], f32[4, 2] {
  total = all_reduce(x, over=data)
  part = reduce_scatter(x, reduction="max")
  wide = all_gather(x)
  turned = all_to_all(x, split=0, concat=1)
  theirs = broadcast_from(x, root=1)
  here = barrier(theirs)
  r = rank()
  first = equal(r, 0)
  got = cond(first, x, then=gives, else=takes)
  return total, part, wide, turned, here, got
}

graph gives(x: f32[4, 2]) -> f32[4, 2] {
  sent = send(x, to=1)
  y = recv(sent, source=1)
  return y
}

graph takes(x: f32[4, 2]) -> f32[4, 2] {
  got = recv(x, source=0)
  twice = mul(got, 2.0)
  y = send(twice, to=0)
  return y
}
"""


def run(*arguments, env=None, **how) -> subprocess.Popen[str]:
    environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
    return subprocess.Popen(
        [*RUN, *map(str, arguments)], env=environment | (env or {}), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, **how,
    )  # fmt: skip


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=400)
    return process.returncode, out, err


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[2]))

    def put(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return put


@pytest.mark.slow
def test_what_ranks_compute_together(write, tmp_path):
    xs = [np.arange(8, dtype=np.float32).reshape(4, 2) + 10 * r for r in range(2)]
    xs[1][0] *= -1
    for r, x in enumerate(xs):
        np.save(tmp_path / f"x{r}.npy", x)
    given = f"x={tmp_path}/x{{rank}}.npy"
    file, db = write("all.opg", ALL), tmp_path / "runs.db"
    more = ("--json", "-w", db, "--trace", tmp_path / "{rank}.pftrace", "--chaos", 3)
    code, out, err = ended(run(file, "-i", given, "--ranks", 2, *more))
    assert code == 0, err
    with closing(sqlite3.connect(db)) as connection:
        query = "select s.value, r.status from settings s join runs r on r.id = s.run"
        rows = connection.execute(f"{query} where s.name = 'rank' order by 1").fetchall()
    assert rows == [(0, "done"), (1, "done")]  # one file has the runs of both
    assert all((tmp_path / f"{r}.pftrace").stat().st_size for r in range(2))
    found = {(one["name"], one.get("rank", 0)): one["values"] for one in json.loads(out)["outputs"]}
    alike = {"total": xs[0] + xs[1], "wide": np.concatenate(xs), "here": xs[1]}
    high = np.maximum(*xs)
    both = {
        "part": (high[:2], high[2:]),
        "turned": tuple(np.concatenate([x[a:b] for x in xs], 1) for a, b in ((0, 2), (2, 4))),
    }
    assert ("total", 1) not in found  # told by rank only where they differ
    for name, value in alike.items():
        assert found[name, 0] == value.tolist()
    for name, values in both.items():
        for rank, value in enumerate(values):
            assert found[name, rank] == value.tolist()
    assert found["got", 0] == (2 * xs[0]).tolist()  # there and back


LOOP = """graph main(x: f32[4]) -> f32[4] {
  y, k = while(x, 0, test=more, body=turn, limit=1000000000)
  return y
}

graph more(x: f32[4], k: i32[]) -> bool[] {
  c = less(k, 1000000000)
  return c
}

graph turn(x: f32[4], k: i32[]) -> f32[4], i32[] {
  y = all_reduce(x, reduction="mean")
  m = add(k, 1)
  return y, m
}
"""


@pytest.mark.slow
def test_a_nan_on_one_rank_in_debug_mode(write, tmp_path):
    rank_scenes.nan_in_debug_mode(tmp_path)


def children(pid: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_rank_that_is_killed_ends_the_others(write):
    process = run(write("loop.opg", LOOP), "-i", "ones", "--ranks", 2)
    wait_until(lambda: len(children(process.pid)) == 2)
    ranks = children(process.pid)
    wait_until(lambda: all(connected(pid) for pid in ranks))
    os.kill(ranks[1], signal.SIGKILL)
    code, _, err = ended(process)
    assert code == 3
    assert "rank 1 was killed by SIGKILL" in err
    assert not any(Path(f"/proc/{pid}").exists() for pid in ranks)
    if "loop.opg" in err:  # it was under way
        assert "loop.opg:12:7: error: rank 0 waits for rank 1, which is gone" in err


def connected(pid: int) -> bool:
    """Whether a rank speaks with others: it has a connection."""
    try:
        files = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
    except OSError:
        return False
    return sum(f.startswith("socket:") for f in files) >= 2


@pytest.mark.slow
def test_a_rank_that_fails_is_told(write):
    text = """graph main(x: f32[4]) -> f32[4] {
  r = rank()
  fine = less(r, 1)
  assert fine, "only the first"
  y = all_reduce(x)
  return y
}
"""
    code, _, err = ended(run(write("fails.opg", text), "-i", "ones", "--ranks", 2))
    assert code == 1
    assert "rank 1 ended with exit code 1" in err
    assert "fails.opg:4:10: error: assert failed: only the first" in err


@pytest.mark.slow
def test_ranks_that_do_not_match_do_not_begin(write, tmp_path):
    text = "graph main(x: f32[N]) -> f32[N] {\n  y = all_reduce(x)\n  return y\n}\n"
    for r in range(2):
        np.save(tmp_path / f"x{r}.npy", np.ones(4 + r, np.float32))
    given = f"x={tmp_path}/x{{rank}}.npy"
    code, _, err = ended(run(write("sizes.opg", text), "-i", given, "--ranks", 2))
    assert code == 1
    assert "sizes.opg:2:7: error: rank 0 is at all_reduce of f32[4], but rank 1 at" in err


def test_more_ranks_than_a_machine_starts(write):
    text = "graph main(x: f32[4]) -> f32[4] {\n  y = all_reduce(x)\n  return y\n}\n"
    code, _, err = ended(run(write("sum.opg", text), "-i", "ones", "--ranks", 1000))
    assert code == 2
    assert "1,000 ranks are too many for one machine, which starts at most 256" in err


@pytest.mark.slow
def test_ranks_of_a_launcher_run_one_program(write, tmp_path):
    text = "graph main(x: f32[4]) -> f32[4] {\n  y = all_reduce(x)\n  return y\n}\n"
    files = [write("a.opg", text), write("b.opg", text.replace("(x)", '(x, reduction="max")'))]
    env = {"WORLD_SIZE": "2", "OPSTEP_STORE": str(tmp_path / "meeting")}
    processes = [run(f, "-i", "ones", env=env | {"RANK": str(r)}) for r, f in enumerate(files)]
    for code, _, err in map(ended, processes):
        assert code == 2
        assert "rank 1 runs another program than rank 0" in err


def test_a_launcher_that_started_others(write):
    file = write("a.opg", "graph main(x: f32[4]) -> f32[4] {\n  y = all_reduce(x)\n  return y\n}\n")
    env = {"WORLD_SIZE": "2", "RANK": "0"}
    code, _, err = ended(run(file, "-i", "ones", "--ranks", 4, env=env))
    assert code == 2
    assert "the launcher has started 2 ranks, not 4" in err


PARTING = """mesh data: 3

param w: f32[2] = ones()
param alike: f32[2] = ones()
state turns: i32[] = zeros()

graph main(x: f32[2]) -> f32[] {
  sum = all_reduce(x)
  r = rank()
  odd = equal(r, 1)
  own = where(odd, x, sum)
  w <- own
  alike <- sum
  loss = mean(sum)
  return loss
}
"""


@pytest.mark.slow
def test_params_that_part(write, tmp_path):
    """Each rank's can be saved; where rank 0's alone are, it is said which others have others."""
    for r in range(3):
        np.save(tmp_path / f"x{r}.npy", np.array([r, 1], np.float32))
    line = (write("part.opg", PARTING), "-i", f"x={tmp_path}/x{{rank}}.npy", "--ranks", 3)
    target = tmp_path / "w.safetensors"
    code, out, err = ended(run(*line, "--save-params", target, "--json"))
    assert code == 0, err
    assert json.loads(out)["parted"] == [{"ranks": [1], "than": 0, "names": ["w"]}]
    assert f"warning: rank 1 has another w than rank 0: {target} has that of rank 0" in err
    assert load_file(target)["w"].tolist() == [3, 3]
    code, _, err = ended(run(*line, "--save-params", tmp_path / "w{rank}.safetensors"))
    assert code == 0 and "warning" not in err, err
    saved = [load_file(tmp_path / f"w{r}.safetensors") for r in range(3)]
    assert [one["w"].tolist() for one in saved] == [[3, 3], [1, 1], [3, 3]]
    assert all(one["alike"].tolist() == [3, 3] for one in saved)
    environment = {"RANK": "0"}
    code, _, err = ended(run(*line[:3], env=environment))
    assert code == 2 and "RANK=0 is in the environment without WORLD_SIZE" in err
