"""``opstep hunt``: what it says, writes and exits with."""

from __future__ import annotations

import io
import json
import os
import sqlite3
import subprocess
import sys

import numpy as np
import pytest

import opstep

FALLING = """\
param w: f32[2] = ones()
state left: f32[] = 3.0

graph main(x: f32[N, 2]) -> f32[] {
  k = sqrt(left)  at "model.py":12
  y = mul(x, w)
  s = mul(y, k)
  loss = mean(s)
  next = sub(left, 1.0)
  left <- next
  return loss
}

graph risky(x: f32[N, 2]) -> f32[N, 2] {
  y = log(x)
  fine = greater(x, 0.0)
  z = where(fine, y, 0.0)
  return z
}

graph strict(x: f32[N, 2]) -> f32[] {
  y = log(x)
  loss = sum(y)
  fine = less(loss, 100.0)
  assert fine, "too large"
  return loss
}
"""


@pytest.fixture
def falling(write) -> str:
    return write("falling.opg", FALLING)


def test_a_report_and_an_exit_code_of_its_own(cli, falling):
    outcome = cli("hunt", falling, "-g", "main", "-i", "random", "-s", "N=2", "--steps", "9")
    assert outcome.code == 5
    assert "main: step 4 is bad" in outcome.out
    born = "origin: NaN born in sqrt k at main, falling.opg:5, from model.py:12"
    assert f"{born}: square root of a negative number" in outcome.out
    assert "k = nan of left = -1" in outcome.out
    assert "reaches loss: mul s (falling.opg:7) -> mean loss (falling.opg:8)" in outcome.out
    assert "--break" in outcome.err


def test_nothing_found_is_said(cli, falling):
    outcome = cli("hunt", falling, "-g", "main", "-i", "random", "-s", "N=2", "--steps", "3")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out == "main: 3 steps, no NaN or infinity came out\n"


def test_what_is_masked_is_told_and_no_alarm(cli, falling):
    outcome = cli("hunt", falling, "-g", "risky", "-i", "x=-1", "-s", "N=2")
    assert outcome.code == 0
    assert "masked: NaN born in log y" in outcome.out
    assert "masked by where (falling.opg:17)" in outcome.out


@pytest.mark.parametrize("mode", [(), ("--mode", "debug"), ("--streams", "3", "--chaos", "7")])
def test_json_tells_all(cli, falling, mode):
    given = ("-g", "main", "-i", "ones", "-s", "N=2", "--steps", "9")
    outcome = cli("hunt", falling, *given, "--json", *mode)
    assert outcome.code == 5
    told = outcome.json
    assert (told["found"], told["step"], told["steps"], told["replays"]) == (True, 4, 4, 2)
    (finding,) = told["findings"]
    assert (finding["kind"], finding["bad"], finding["op"]) == ("origin", "nan", "sqrt")
    assert (finding["file"], finding["line"], finding["imported"]) == (
        "falling.opg", 5, "model.py:12",
    )  # fmt: skip
    (rule,) = finding["rules"]
    assert rule.pop("advice").startswith("A square root has no value below 0.")
    assert rule == {"rule": "square root of a negative number", "elements": 1}
    (element,) = finding["elements"]
    assert element["of"] == [{"operand": 0, "name": "left", "place": [], "value": -1.0}]
    assert [c["value"] for c in finding["chain"]] == ["k", "s", "loss"]
    assert [p["value"] for p in told["propagated"]] == ["s", "loss"]
    assert finding["operands"][0]["min"] == -1.0


def test_findings_go_to_the_workspace(cli, falling, tmp_path):
    given = ("-g", "main", "-i", "ones", "-s", "N=2", "--steps", "9", "-w", "runs.db")
    assert cli("hunt", falling, *given).code == 5
    run = opstep.Workspace(tmp_path / "runs.db").runs[0]
    (found,) = [f for f in run.findings if f.kind == "origin"]
    assert (found.step, found.value, found.line) == (4, "k", 5)
    assert "square root of a negative number" in found.message
    with sqlite3.connect(tmp_path / "runs.db") as connection:
        (name,) = connection.execute(
            "select name from ops where run = ? and op = ?", (run.id, found.op)
        ).fetchone()
    assert name == "sqrt"


def test_the_first_step_is_recorded_when_it_is_bad(cli, falling, tmp_path):
    assert cli("hunt", falling, "-g", "strict", "-i", "x=-1", "-s", "N=2", "-w", "r.db").code == 5
    run = opstep.Workspace(tmp_path / "r.db").runs[0]
    assert [f.kind for f in run.findings if f.kind == "origin"] == ["origin"]


def test_nan_only(cli, falling):
    given = ("-g", "strict", "-i", "x=0", "-s", "N=2")
    assert cli("hunt", falling, *given).code == 5
    assert cli("hunt", falling, *given, "--nan-only").code == 0


def test_infinities_of_which_each_alone_would_be_hidden(cli, write):
    text = """\
        graph main(x: f32[2], z: f32[2]) -> f32[2] {
          a = exp(x)
          b = exp(z)
          y = minimum(a, b)
          return y
        }
        """
    outcome = cli("hunt", write("least.opg", text), "-i", "x=1000", "-i", "z=1000")
    assert outcome.code == 5
    assert "infinity born in exp a at main, least.opg:2" in outcome.out
    assert "infinity born in exp b at main, least.opg:3" in outcome.out


def test_a_failed_assert_is_an_error_of_the_program(cli, falling):
    outcome = cli("hunt", falling, "-g", "strict", "-i", "x=1e38", "-s", "N=2")
    assert outcome.code == 1
    assert "too large" in outcome.err


def test_nan_in_an_input(cli, falling, tmp_path):
    np.save(tmp_path / "x.npy", np.array([[1, np.nan]], np.float32))
    outcome = cli("hunt", falling, "-g", "main", "-i", "x=x.npy")
    assert outcome.code == 5
    assert "origin: input x has 1 of 2 elements NaN" in outcome.out
    assert "x[0, 1] = nan" in outcome.out


def test_inputs_that_change(cli, falling, tmp_path):
    np.save(tmp_path / "x.npy", np.array([[[1, 2]], [[3, 4]], [[-1, 2]]], np.float32))
    given = ("-g", "risky", "--data", "x=x.npy", "--masked")
    outcome = cli("hunt", falling, *given)
    assert outcome.code == 5
    assert "risky: step 2 is bad" in outcome.out
    assert "masked: NaN born in log y" in outcome.out
    quiet = cli("hunt", falling, *given, "--steps", "2")
    assert (quiet.code, quiet.out) == (0, "risky: 2 steps, no NaN or infinity came out\n")
    assert cli("hunt", falling, *given, "--steps", "5", "--json").json["step"] == 2


def test_other_kinds(cli, falling):
    given = ("-g", "main", "-i", "ones", "-s", "N=2", "--steps", "9")
    found = cli("hunt", falling, *given, "--hunt", "nan,inf,max < 0.5", "--json").json
    assert (found["step"], found["findings"][0]["op"]) == (2, "sub")
    assert found["findings"][0]["bad"] == "max < 0.5"


def test_wanted_infinities(cli, falling):
    given = ("-g", "strict", "-i", "x=0", "-s", "N=2")
    told = cli("hunt", falling, *given).out
    assert "x: f32[2, 2]  mean 0  std 0  min 0  max 0" in told
    assert cli("hunt", falling, *given, "--wanted", "y").code == 0


def test_infinities_below_are_told_from_those_above(cli, write):
    text = """\
        graph main(x: f32[4]) -> f32[] {
          s = sum(x)
          return s
        }
        """
    np.save(write("g.opg", text).replace("g.opg", "x.npy"), np.float32([np.inf, -np.inf, 1, 2]))
    outcome = cli("hunt", "g.opg", "-i", "x=x.npy")
    assert "x: f32[4]  mean 1.5  std 0.5  min 1  max 2  1 inf  1 -inf" in outcome.out


@pytest.mark.parametrize(
    "arguments, code, message",
    [
        (("falling.opg", "-g", "main", "-i", "ones", "-s", "N=2", "--hunt", "naan"), 2, "nan?"),
        (("falling.opg", "-g", "main", "-i", "ones", "-s", "N=2", "--hunt", "a >"), 2, "value"),
        (
            ("falling.opg", "-g", "main", "-i", "ones", "-s", "N=2", "--hunt", "nan,absmax > > 3"),
            2,
            "expression:1:10: error: expected a value, not >\n  absmax > > 3\n           ^",
        ),
        (
            ("falling.opg", "-g", "main", "-i", "ones", "-s", "N=2", "--hunt", "max > median"),
            2,
            "expression:1:7: error: median is no figure of a tensor\n  max > median\n        ^",
        ),
        (("falling.opg", "-g", "main", "--data", "x=ones"), 2, "--data x=ones"),
        (("falling.opg", "-g", "main", "--data", "z=x.npy"), 2, "with NAME of x"),
        (("absent.opg",), 2, "absent.opg"),
        (("falling.opg", "-g", "none"), 2, "there is no graph none"),
        (("falling.opg", "-g", "main"), 2, "x"),
        (("falling.opg", "-g", "main", "-i", "random"), 2, "N"),
        (("falling.opg", "-g", "main", "-i", "ones", "-s", "N=2", "--device", "null"), 2, "null"),
        (("falling.opg", "-g", "main", "-i", "ones", "-s", "N=2", "--steps", "0"), 2, "steps"),
        (("falling.opg", "-i", "ones", "-s", "N=2", "--break", "--json"), 2, "--break"),
        (
            (
                "falling.opg",
                "-g",
                "main",
                "-i",
                "ones",
                "-s",
                "N=2",
                "--nan-only",
                "--hunt",
                "index",
            ),
            2,
            "--hunt nan,index",
        ),
        (("falling.opg", "-g", "main", "--data", "x=x.npy", "-i", "x=1"), 2, "leave out one"),
        (
            ("falling.opg", "-g", "main", "--data", "x=x.npy", "--data", "x=x.npy"),
            2,
            "given before",
        ),
        (("falling.opg", "-i", "ones", "-s", "N=2", "--kernels", "numba"), 2, "--kernels"),
        (("falling.opg", "-i", "ones", "-s", "N=2", "-w", "no/such/folder.db"), 2, "folder"),
        (("falling.opg", "-i", "ones", "-s", "N=2", "--params", "none.safetensors"), 2, "none"),
        (("broken.opg",), 1, "broken.opg"),
    ],
)
def test_bad_input(cli, falling, write, tmp_path, arguments, code, message):
    np.save(tmp_path / "x.npy", np.ones((3, 1, 2), np.float32))
    write("broken.opg", "graph main(x: f32[2]) -> f32[2] {\n  y = nothing(x)\n  return y\n}\n")
    outcome = cli("hunt", *arguments)
    assert outcome.code == code
    assert message in outcome.err
    assert outcome.out == ""


def test_break_stands_behind_the_op(cli, falling, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("p k\nreverse-next\np left\nq\n"))
    given = ("-g", "main", "-i", "ones", "-s", "N=2", "--steps", "9", "--break")
    outcome = cli("hunt", falling, *given)
    assert outcome.code == 5
    assert "step 4, after sqrt k" in outcome.out
    assert "k = nan" in outcome.out
    assert "left = -1.0" in outcome.out


def test_break_stands_in_the_turn_of_a_loop(cli, write, monkeypatch):
    text = """\
        graph main(x: f32[2]) -> f32[2] {
          y = while(x, test=large, body=lower)
          return y
        }

        graph large(x: f32[2]) -> bool[] {
          m = max(x)
          big = greater(m, 2.0)
          return big
        }

        graph lower(x: f32[2]) -> f32[2] {
          a = sub(x, 40.0)
          r = sqrt(a)
          return r
        }
        """
    monkeypatch.setattr("sys.stdin", io.StringIO("bt\nq\n"))
    outcome = cli("hunt", write("loop.opg", text), "-i", "x=100", "--break")
    assert outcome.code == 5
    assert "NaN born in sqrt r at lower [i=1], loop.opg:14" in outcome.out
    assert "#0  lower [i=1]" in outcome.out


def test_break_before_an_input_that_is_bad(cli, falling, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("q\n"))
    outcome = cli("hunt", falling, "-g", "main", "-i", "x=nan", "-s", "N=2", "--break")
    assert outcome.code == 5
    assert "before the first op: input x" in outcome.out


def test_a_first_hunt_of_small_tensors_compiles_only_what_they_need(falling, tmp_path):
    """Neither statistics nor threads that share a launch."""
    folder = tmp_path / "kernels"
    path = os.pathsep.join(sys.path)
    environment = {**os.environ, "OPSTEP_CACHE": str(folder), "PYTHONPATH": path}
    command = [sys.executable, "-m", "opstep", "hunt", falling, "-g", "main", "-i", "random"]
    done = subprocess.run(
        [*command, "-s", "N=2", "--steps", "9"],
        cwd=tmp_path, env=environment, capture_output=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 5, done.stderr
    kept = [json.loads(p.read_bytes().partition(b"\n")[0])["kernel"] for p in folder.glob("*.o")]
    assert "sqrt" in kept and "run_table" in kept
    assert not [k for k in kept if k == "help_forever" or "statistics" in k]


ROOT = """\
graph loss(x: f32[4]) -> f32[] {
  q = square(x)
  r = sqrt(q)
  l = sum(r)
  return l
}
"""


@pytest.mark.parametrize("name", ["loss_grad", "back"])
def test_a_gradient_that_was_written_to_a_file_says_what_it_is_of(cli, write, name):
    write("net.opg", ROOT)
    given = ("net.opg", "--wrt", "x", "--name", name, "-o", "gradient.opg")
    assert cli("grad", *given).code == 0
    outcome = cli("hunt", "gradient.opg", "-g", name, "-i", "x=zeros", "--json")
    assert outcome.code == 5
    findings = json.loads(outcome.out)["findings"]
    assert [f["backward"] for f in findings] == ["r = sqrt(q)", "q = square(x)"]
    assert "in the backward of `r = sqrt(q)`" in findings[0]["message"]
