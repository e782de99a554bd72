"""Programs on two ranks, on CPUs or, with `more`, on GPUs: what is to come of them on both."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np


def run(folder: Path, *line: object) -> tuple[int, str, str]:
    """``opstep …`` in a folder: the exit code, and what it wrote."""
    command = [sys.executable, "-m", "opstep", *map(str, line)]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=400)
    assert "Traceback" not in ran.stderr, ran.stderr
    return ran.returncode, ran.stdout, ran.stderr


def nan_in_debug_mode(folder: Path, *more: object) -> None:
    """What looks for memory never written runs ops again, and no collective: others are on."""
    (folder / "nan.opg").write_text("""mesh data: 2

graph main(x: f32[4]) -> f32[2], f32[8] {
  part = reduce_scatter(x)
  all = all_gather(x)
  return part, all
}
""")
    for r in range(2):
        np.save(folder / f"x{r}.npy", np.array([np.nan, 1, 2, 3], np.float32))
    debug = ("--mode", "debug", "--json", "--ranks", 2)
    code, out, err = run(folder, "run", "nan.opg", "-i", "x=x{rank}.npy", *debug, *more)
    assert code == 0, err
    found = json.loads(out)
    parts = [one["values"] for one in found["outputs"] if one["name"] == "part"]
    assert parts == [["nan", 2], [4, 6]]
    assert not found["unwritten"]


FAULTS = """mesh data: 2

state seen: f32[4] = ones()

graph main(x: f32[4], h: f16[4]) -> f32[2], f32[4], f16[4], f32[4] {
  y = log(x)
  part = reduce_scatter(y)
  r = rank()
  first = equal(r, 0)
  got = cond(first, seen, then=gives, else=takes)
  large = all_reduce(h)
  theirs = broadcast_from(got, root=1)
  twice = mul(theirs, 2.0)
  seen <- twice
  return part, got, large, twice
}

graph gives(x: f32[4]) -> f32[4] {
  less = sub(x, 2.0)
  root = sqrt(less)
  y = send(root, to=1)
  z = relu(x)
  return z
}

graph takes(x: f32[4]) -> f32[4] {
  y = recv(x, source=0)
  return y
}
"""


def found_by_a_hunt(folder: Path, *more: object) -> None:
    """The rank and the op where each was born, and over which collective it came to the other."""
    (folder / "step.opg").write_text(FAULTS)
    for rank in range(2):
        x = np.array([1, 2, 3, -1 if rank == 0 else 4], np.float32)
        np.savez(folder / f"x{rank}.npz", x=x, h=np.full(4, 40000, np.float16))
    given = [f"-i{n}=x{{rank}}.npz:{n}" for n in "xh"]
    code, out, err = run(folder, "hunt", "step.opg", *given, "--ranks", 2, "--json", *more)
    assert code == 5, err
    told = json.loads(out)
    ranks = {one["rank"]: one["findings"] for one in told["ranks"]}
    found = {
        r: {(f["op"], f["given"], f["line"]) for f in ranks[r] if f["kind"] == "origin"}
        for r in ranks
    }
    for r in (0, 1):  # no rank brought that: it is the sum's
        assert ("all_reduce", None, 11) in found[r]
    assert ("log", None, 6) in found[0]  # its part went to rank 1
    assert ("sqrt", None, 20) in found[0]
    assert ("reduce_scatter", "rank 0", 7) in found[1]
    assert ("recv", "rank 0", 27) in found[1]
    assert ("broadcast_from", "rank 1", 12) in found[0]
    assert not {op for op, *_ in found[1]} & {"log", "sqrt"}


PARTING = """mesh data: 2

graph main(x: f32[4]) -> f32[4] {
  m = max(x)
  more = greater(m, 1.0)
  y = cond(more, x, then=talks, else=stays)
  return y
}

graph talks(x: f32[4]) -> f32[4] {
  y = all_reduce(x)
  return y
}

graph stays(x: f32[4]) -> f32[4] {
  y = OTHERWISE
  return y
}
"""


def checked_as_it_runs(folder: Path, *more: object) -> None:
    """What ranks do follows from what each was given."""
    for rank in range(2):
        np.save(folder / f"same{rank}.npy", np.full(4, 2 + rank, np.float32))
        np.save(folder / f"apart{rank}.npy", np.full(4, 2 * rank, np.float32))

    def ran(otherwise: str, given: str, *check: str) -> tuple[int, str, str]:
        (folder / "part.opg").write_text(PARTING.replace("OTHERWISE", otherwise))
        line = ("part.opg", "-i", f"x={given}{{rank}}.npy", "--ranks", 2, "--json")
        return run(folder, "run", *line, *check, *more)

    extreme, send = 'all_reduce(x, reduction="max")', "send(x, to=1)"
    code, _, err = ran(extreme, "same")
    assert code == 1 and "may each take another way here" in err
    code, out, err = ran(extreme, "same", "--check")
    assert code == 0, err
    assert json.loads(out)["outputs"][0]["values"] == [5.0] * 4
    there = {extreme: f"at all_reduce of f32[4], {extreme[14:-1]}", "mul(x, 2.0)": "done",
             send: "at send of f32[4]"}  # fmt: skip
    for otherwise, at in there.items():
        code, _, err = ran(otherwise, "apart", "--check")
        assert code == 1, err
        assert f"rank 0 is {at}, but rank 1 is at all_reduce of f32[4]" in err, err
        assert ("part.opg:16" in err) == (at != "done") and "part.opg:11" in err, err
