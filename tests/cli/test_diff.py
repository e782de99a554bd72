"""`opstep diff`, and `--chaos`."""

from __future__ import annotations

import numpy as np
import pytest

TEXT = """\
param w: f32[8] = normal()

graph main(x: f32[8]) -> f32[8], f32[] {
  a = exp(x)
  b = mul(a, w)
  s = sum(b)
  w <- b
  return b, s
}

graph other(x: f32[8]) -> f32[8] {
  y = relu(x)
  return y
}
"""


@pytest.fixture
def files(tmp_path):
    (tmp_path / "old.opg").write_text(TEXT)
    (tmp_path / "new.opg").write_text(TEXT.replace("b = mul(a, w)", "b = div(a, w)"))
    np.save(tmp_path / "x.npy", np.linspace(-1, 1, 8, dtype="f4"))


@pytest.mark.usefixtures("files")
def test_two_ways_to_run_that_give_the_same(cli):
    outcome = cli("diff", "old.opg", "-i", "x=x.npy", "--a", "streams=4", "--steps", 3)
    assert outcome.code == 0 and outcome.err == ""
    lines = outcome.out.splitlines()
    assert lines == [
        "a: async, streams=4; b: debug",
        "same, 12 results of ops in 3 steps compared",
        "a: free of races (proved from 1 plan)",
        "b: free of races (proved from 1 plan)",
    ]
    assert cli("diff", "old.opg", "-i", "random", "--chaos", 3, "-g", "other").code == 0


@pytest.mark.usefixtures("files")
def test_two_programs(cli):
    outcome = cli("diff", "old.opg", "new.opg", "-i", "x=x.npy")
    assert outcome.code == 1
    for words in (
        "a: async; b: async", "they differ, 4 results of ops in 1 step compared",
        "first: mul gives b: f32[8] in step 0 (main/b)", "old.opg:5: b = mul(a, w)",
        "new.opg:5: b = div(a, w)", "8 of 8 elements differ", "first, at [0]", "apart at most",
        "units in the last place", "3 results of this step differ",
    ):  # fmt: skip
        assert words in outcome.out, outcome.out
    told = cli("diff", "old.opg", "new.opg", "-i", "x=x.npy", "--json").json
    first = told["first"]
    assert not told["same"] and told["compared"] == 4 and told["differing"] == 3
    assert (first["a"]["site"], first["a"]["line"], first["b"]["op"]) == ("main/b", 5, "div")
    assert first["elements"]["differing"] == 8 and first["elements"]["first"] == [0]
    assert told["hazards"]["a"] == {"plans": 1, "found": [], "at_op": []}
    assert cli("diff", "old.opg", "new.opg", "-i", "x=x.npy", "--atol", 1e3).code == 0


HALF = """\
graph main(x: f16[8]) -> f16[8] {
  a = add(x, 2048.0)
  b = sub(a, 2048.0)
  return b
}
"""


def test_where_precision_is_lost(cli, tmp_path):
    (tmp_path / "half.opg").write_text(HALF)
    (tmp_path / "full.opg").write_text(HALF.replace("f16", "f32"))
    np.save(tmp_path / "x.npy", np.linspace(0.1, 1.2, 8, dtype="f2"))
    outcome = cli("diff", "half.opg", "-i", "x=x.npy", "--b", "f64")
    assert outcome.code == 1
    for words in (
        "b: f64; loses more than its types must, 2 ops, 1 step", "b: relative error ",
        "of 0.0078 allowed", "half.opg:3: b = sub(a, 2048.0)", "the error of a grows",
    ):  # fmt: skip
        assert words in outcome.out, outcome.out
    told = cli("diff", "half.opg", "-i", "x=x.npy", "--b", "f64", "--json").json
    assert (told["same"], told["losses"][0]["line"], told["losses"][0]["through"]) == (
        False,
        3,
        "a",
    )
    assert cli("diff", "half.opg", "-i", "x=x.npy", "--b", "f64", "--rtol", 2).code == 0
    outcome = cli("diff", "half.opg", "full.opg", "-i", "x=x.npy")
    assert outcome.code == 1
    assert "first: sub gives b: f16[8]" in outcome.out
    assert "some floats are f16 on one side" in outcome.out
    outcome = cli("diff", "half.opg", "full.opg", "-i", "x=x.npy", "--b", "f64")
    assert outcome.code == 2 and "takes one program" in outcome.err
    outcome = cli("diff", "half.opg", "-i", "x=x.npy", "--b", "f64", "--atol", 1)
    assert outcome.code == 2 and "of tolerances --rtol" in outcome.err


@pytest.mark.usefixtures("files")
def test_two_runs_of_a_workspace(cli):
    for file in ("old.opg", "new.opg"):
        assert cli("run", file, "-i", "x=x.npy", "-w", "runs.db").code == 0
    outcome = cli("diff", "--workspace", "runs.db", "1", "2")
    assert outcome.code == 1 and "first: mul gives b in step 0" in outcome.out
    assert cli("diff", "-w", "runs.db", "1", "2", "--json").json["first"]["site"] == "main/b"
    assert cli("diff", "-w", "runs.db", "2", "last").code == 0


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    "arguments, words",
    [
        (["old.opg"], "inputs that nothing was given for"),
        (["old.opg", "-i", "random", "--a", "fast"], "'fast' is not a setting of a run"),
        (["old.opg", "-i", "random", "--b", "streams=0"], "streams is 0; it can be 1 to 64"),
        (["old.opg", "-i", "random", "--b", "device=null"], "null device computes nothing"),
        (["old.opg", "-i", "random", "-g", "none"], "there is no graph none"),
        (["old.opg", "new.opg", "old.opg", "-i", "random"], "two at most"),
        (["absent.opg", "-i", "random"], "absent.opg"),
        (["-w", "absent.db", "1", "2"], "absent.db"),
        (["-w", "absent.db", "1"], "compares two runs"),
        (["old.opg", "-i", "random", "--rtol", "-1"], "rtol"),
        (["old.opg", "-i", "random", "--chaos", "-1"], "chaos"),
        (["old.opg", "-i", "random", "--memory", "0"], "memory"),
        ([], "Missing argument"),
    ],
)
def test_bad_input(cli, arguments, words):
    outcome = cli("diff", *arguments)
    assert outcome.code == 2
    assert words in outcome.err


def test_a_program_with_errors(cli, tmp_path):
    (tmp_path / "bad.opg").write_text("graph main(x: f32[8]) -> f32[8] {\n  return y\n}\n")
    outcome = cli("diff", "bad.opg", "-i", "random")
    assert outcome.code == 1 and "bad.opg:2" in outcome.err


@pytest.mark.usefixtures("files")
def test_a_run_with_delays_gives_the_same_bits(cli):
    assert cli("run", "old.opg", "-i", "x=x.npy", "-o", "calm.npz").code == 0
    assert cli("run", "old.opg", "-i", "x=x.npy", "-o", "late.npz", "--chaos", 7).code == 0
    calm, late = np.load("calm.npz"), np.load("late.npz")
    assert [calm[k].tobytes() for k in "bs"] == [late[k].tobytes() for k in "bs"]
