"""``opstep run``: inputs from files and made up, results shown and saved, params in and out."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

import opstep
from opstep.runtime import arrays


def test_summary(cli, scale):
    outcome = cli("run", scale, "-i", "random", "-s", "N=4")
    assert outcome.code == 0
    assert "f32[4, 3]" in outcome.out
    assert outcome.err == ""


def test_inputs_from_npy_npz_and_numbers(cli, scale, tmp_path):
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "all.npz", x=x, other=x)
    arrays.write_safetensors(tmp_path / "x.safetensors", {"x": x})
    found = []
    for source in ("x.npy", "all.npz:x", "x.safetensors", "x.safetensors:x"):
        outcome = cli("run", scale, "-i", f"x={source}", "-i", "bias=1", "--json")
        assert outcome.code == 0, outcome.err
        found.append(outcome.json["outputs"])
    assert all(f == found[0] for f in found)
    y, z = (np.array(o["values"]) for o in found[0])
    assert np.allclose(z, y + 1)


@pytest.mark.parametrize(
    "source, expected", [("zeros", 0), ("ones", 2), ("2.5", 5), ("-1e2", -200)]
)
def test_made_inputs(cli, scale, source, expected):
    outcome = cli("run", scale, "-g", "double", "-i", f"x={source}", "-s", "N=3", "--json")
    assert outcome.json["outputs"][0]["values"] == [expected] * 3


def test_random_inputs_follow_the_seed_alone(cli, scale):
    def values(*more):
        outcome = cli("run", scale, "-g", "double", "-i", "random", "-s", "N=9", "--json", *more)
        return outcome.json["outputs"][0]["values"]

    assert values() == values("--mode", "debug", "--threads", "1")
    assert values() != values("--seed", "1")


def test_what_is_not_finite_is_counted(cli, scale):
    outcome = cli("run", scale, "-g", "double", "-i", "x=nan", "-s", "N=3")
    assert " 3 NaN " in outcome.out
    outcome = cli("run", scale, "-g", "double", "-i", "x=-inf", "-s", "N=2")
    assert " 2 inf " in outcome.out


def test_json_tells_all(cli, scale):
    record = cli("run", scale, "-i", "random", "-s", "N=2", "--json", "--mode", "debug").json
    assert record["graph"] == "main"
    assert record["policy"] == {"streams": 1, "alloc": "fresh", "fill": "nan", "sync": "op"}
    assert [o["name"] for o in record["outputs"]] == ["y", "z"]
    assert record["outputs"][0]["shape"] == [2, 3]
    assert record["outputs"][0]["nan"] == 0
    assert record["unwritten"] == []


def test_switches_replace_the_preset(cli, scale):
    options = ("--mode", "debug", "--streams", "3", "--alloc", "reuse", "--fill", "none")
    record = cli("run", scale, "-i", "random", "-s", "N=2", "--json", *options).json
    assert record["policy"] == {"streams": 3, "alloc": "reuse", "fill": "none", "sync": "op"}


def test_outputs_to_files(cli, scale, tmp_path):
    outcome = cli(
        "run", scale, "-i", "random", "-s", "N=2", "--json",
        "-o", "y=y.npy", "-o", "all.npz", "-o", "all.safetensors",
    )  # fmt: skip
    assert outcome.code == 0
    y = np.load(tmp_path / "y.npy")
    assert y.tolist() == outcome.json["outputs"][0]["values"]
    for found in (arrays.read_npz("all.npz"), arrays.read_safetensors("all.safetensors")):
        assert sorted(found) == ["y", "z"]
        assert (found["y"] == y).all()


def test_params_out_and_in(cli, scale):
    first = cli("run", scale, "-i", "ones", "-s", "N=1", "--steps", "3", "--seed", "5", "--json",
                "--save-params", "p.safetensors")  # fmt: skip
    assert first.code == 0
    saved = arrays.read_safetensors("p.safetensors")
    assert sorted(saved) == ["count", "w"]
    assert saved["count"] == 3
    again = cli("run", scale, "-i", "ones", "-s", "N=1", "--params", "p.safetensors", "--json",
                "--save-params", "q.safetensors")  # fmt: skip
    assert again.json["outputs"] == first.json["outputs"]
    assert arrays.read_safetensors("q.safetensors")["count"] == 4


def test_bf16_params(cli, write):
    path = write("h.opg", """\
        param w: bf16[3]
        graph main(x: bf16[3]) -> bf16[3] {
          y = add(x, w)
          return y
        }
        """)  # fmt: skip
    import ml_dtypes

    w = np.array([1, 2, 3], ml_dtypes.bfloat16)
    arrays.write_safetensors("w.safetensors", {"w": w})
    outcome = cli("run", path, "-i", "x=1", "--params", "w.safetensors", "-o", "y.npy", "--json")
    assert outcome.json["outputs"][0]["values"] == [2, 3, 4]
    assert (arrays.read_npy("y.npy") == w + 1).all()


def test_the_null_device_runs_nothing(cli, scale):
    outcome = cli("run", scale, "-i", "random", "-s", "N=4", "--device", "null", "--steps", "3")
    assert outcome.code == 0
    assert "executes nothing" in outcome.out


def test_a_graph_without_inputs(cli, write):
    path = write("c.opg", """\
        state s: i32[] = 40
        graph main() -> i32[] {
          n = add(s, 1)
          s <- n
          return n
        }
        """)  # fmt: skip
    outcome = cli("run", path, "--steps", "2", "--json")
    assert outcome.json["outputs"][0]["values"] == 42


def test_names_and_tags_of_runs(cli, scale):
    common = ("run", scale, "-i", "random", "-s", "N=2", "-w", "runs.db", "--steps", 5)
    done = cli(*common, "--name", "first", "--tag", "lr=0.1", "--tag", "by=hand",
               "--keep-inputs", "every=2")  # fmt: skip
    assert done.code == 0
    with opstep.Workspace("runs.db") as ws:
        run = ws.run("first")
        assert (run.tags, run.keep_inputs) == ({"lr": 0.1, "by": "hand"}, 2)
        assert "bias" in run.scalars
    again = cli("ws", "runs.db", "rerun", "first", "--step", 4)
    assert again.code == 0 and "same bits" in again.out
    assert cli("ws", "runs.db", "rerun", "first", "--step", 3).code == 2
    for wrong in (("--tag", "lr"), ("--tag", "=1"), ("--keep-inputs", "every=x")):
        assert cli(*common, *wrong).code == 2
    without = cli("run", scale, "-i", "random", "-s", "N=2", "--tag", "lr=1")
    assert without.code == 2 and "--tag needs a workspace" in without.err


def test_a_full_disk_for_the_output_leaves_the_workspace_told(cli, scale, monkeypatch, tmp_path):
    def full(*arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np.lib.format, "write_array", full)
    monkeypatch.setattr(np, "save", full)
    done = cli("run", scale, "-i", "random", "-s", "N=2", "-w", "runs.db", "-o", "y=y.npy")
    assert done.code in (2, 3)
    assert "No space left" in done.err and "opstep ws runs.db" in done.err
    with opstep.Workspace(tmp_path / "runs.db") as ws:
        assert ws.run("last").status == "done"


def test_inputs_from_tables_and_folders_of_images(cli, write, tmp_path):
    """As training reads them; values that the input's element type has are taken."""
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    Image = pytest.importorskip("PIL.Image")
    text = """
    graph main(x: f32[N, 2], images: f32[N, 4, 4], labels: i32[N]) -> f32[N, 2], f32[], i32[N] {
      y = neg(x)
      m = mean(images)
      z = neg(labels)
      return y, m, z
    }
    """
    write("net.opg", text)
    parquet.write_table(pa.table({"a": [1.0, 2.0], "b": [3, 4]}), tmp_path / "t.parquet")
    for name, value in (("cat", 10), ("dog", 20)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        Image.fromarray(np.full((4, 4), value, np.uint8)).save(f"photos/{name}/0.png")
    given = ("-i", "images=photos", "-i", "labels=photos", "-o", "out.npz")
    outcome = cli("run", "net.opg", "-i", "x=t.parquet:a,b", *given)
    assert outcome.code == 0, outcome.err
    with np.load("out.npz") as found:
        assert found["y"].tolist() == [[-1, -3], [-2, -4]]
        assert (float(found["m"]), found["z"].tolist()) == (15.0, [0, -1])
    outcome = cli("run", "net.opg", "-i", "x=t.parquet:a,c", *given)
    assert outcome.code == 2 and "t.parquet has no column c" in outcome.err


def test_an_editor_is_told_where_a_nan_was_born(cli, write, tmp_path, monkeypatch):
    text = "state s: f32[] = 1.0\n\ngraph main() -> f32[] {\n"
    text += "  d = sub(s, 1.0)\n  l = log(s)\n  s <- d\n  return l\n}\n"
    path, told = write("falls.opg", text), tmp_path / "findings.json"
    monkeypatch.setenv("OPSTEP_FINDINGS", str(told))
    assert cli("run", path).code == 0
    assert not told.exists()
    outcome = cli("run", path, "--steps", "2")
    assert outcome.code == 0 and "not finite" in outcome.err
    found = json.loads(told.read_text())
    assert found["step"] == 1 and [(f["value"], f["line"]) for f in found["findings"]] == [("l", 5)]


def test_an_editor_is_told_which_kernels_are_compiled(write, tmp_path):
    import os
    import subprocess
    import sys

    lines = "  l = log(x)\n  a = neg(l)\n  y = softmax(a)\n  return y\n"
    path = write("log.opg", f"graph main(x: f32[N, 64]) -> f32[N, 64] {{\n{lines}}}\n")
    env = {**os.environ, "OPSTEP_PROGRESS": "1", "OPSTEP_CACHE": str(tmp_path / "kernels")}
    command = [sys.executable, "-m", "opstep", "run", str(path), "-i", "x=2"]
    command += ["-s", "N=20000", "--threads", "2", "--mode", "debug"]
    ended = subprocess.run(
        command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=240
    )
    assert ended.returncode == 0
    told = re.findall(r"^compiling kernel (\d+) of (\d+): (.+)$", ended.stderr, re.MULTILINE)
    total = len(ended.stderr.splitlines())
    assert [(int(n), int(of)) for n, of, _ in told] == [(k + 1, total) for k in range(total)]
    names = {name for *_, name in told}
    assert {"log", "the loop over ops", "threads that share an op"} <= names
    assert not any("table" in name or "forever" in name for name in names)
