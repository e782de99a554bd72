"""``opstep ws``: what is in a workspace, tensors in and out, SQL, export, pictures."""

from __future__ import annotations

import csv
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import numpy as np
import pytest
from workspaces import CHANGED, ROOTS, record, train_inputs, train_program

import opstep
from opstep.cli.main import group
from opstep.cli.ws import VERBS
from opstep.runtime import arrays

ROOT = click.Context(group, info_name="opstep")
WS = group.get_command(ROOT, "ws")


@pytest.fixture
def runs(tmp_path):
    """Two runs that differ in one op; their keys."""
    path = tmp_path / "runs.db"
    return [record(path, steps=3), record(path, train_program(CHANGED), steps=3)]


# --- help -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_examples(cli, verb):
    outcome = cli("ws", "runs.db", verb, "--help")
    assert outcome.code == 0
    assert cli("ws", verb, "-h").out == outcome.out
    assert "Examples:" in outcome.out and "Exit codes:" in outcome.out
    assert max(map(len, outcome.out.splitlines())) <= 110
    command = WS.get_command(ROOT, verb)
    assert command.help.partition("\n")[0] == command.short_help == VERBS[verb][1]
    known = {flag for p in command.get_params(ROOT) for flag in p.opts + p.secondary_opts}
    assert len(command.examples) >= 2
    for line, what in command.examples:
        words = shlex.split(line.partition(" > ")[0])
        assert words[:4] == ["opstep", "ws", "runs.db", verb] and what
        assert {w for w in words if w.startswith("-") and w != "-"} <= known
    assert all(isinstance(p, click.Argument) or p.help for p in command.get_params(ROOT))


def test_the_file_comes_first(cli):
    outcome = cli("ws", "list", "runs.db")
    assert outcome.code == 2
    assert "The file comes first: opstep ws FILE list" in outcome.err
    outcome = cli("ws", "runs.db", "lst")
    assert outcome.code == 2
    assert "no verb lst: did you mean list?" in outcome.err
    outcome = cli("ws", "runs.db", "runs")
    assert "no verb runs: did you mean list runs?" in outcome.err


# --- summary --------------------------------------------------------------------------------------


def test_the_summary(cli, runs):
    outcome = cli("ws", "runs.db")
    assert outcome.code == 0, outcome.err
    first, *_ = outcome.out.splitlines()
    assert first.startswith("runs.db: ") and "2 runs" in first
    for word in (*runs, "train.opg", "main", "done", "bias", "f32[3]", "param"):
        assert word in outcome.out
    for line in outcome.out.splitlines():
        if line.startswith("  opstep ws"):
            words = shlex.split(line.partition("#")[0])
            assert cli(*words[1:]).code == (1 if "compare" in words else 0), line


def test_the_summary_tells_what_is_wrong(cli, tmp_path):
    record(tmp_path / "runs.db", opstep.loads(ROOTS, "roots.opg"), {"x": np.zeros(2, "f4")})
    out = cli("ws", "runs.db").out
    assert "roots.opg:3" in out and "nan" in out


def test_the_summary_of_nothing(cli):
    opstep.Workspace.create("empty.db")
    outcome = cli("ws", "empty.db")
    assert "0 runs, 0 tensors" in outcome.out
    assert "opstep run model.opg -i random --workspace empty.db" in outcome.out


def test_the_summary_as_json(cli, runs):
    for arguments in (["runs.db", "--json"], ["--json", "runs.db"]):
        told = cli("ws", *arguments).json
        assert [run["key"] for run in told["runs"]] == runs
        assert told["runs"][0]["rows"]["metrics"] == 6
        assert {t["name"] for t in told["tensors"]} >= {"x", "bias", "loss"}


# --- tensors --------------------------------------------------------------------------------------


def test_several_tensors_as_json(cli, runs):
    told = cli("ws", "runs.db", "load", "x", "target", "--json").json
    assert [t["name"] for t in told] == ["x", "target"]
    told = cli("ws", "runs.db", "load", "--run", "1", "--kind", "param", "--json").json
    assert [t["reference"] for t in told] == [f"bias@{runs[0]}:2"]


def test_list(cli, runs):
    out = cli("ws", "runs.db", "list").out
    assert f"bias@{runs[0]}:2" in out and f"x@{runs[1]}:-1" in out
    told = cli("ws", "runs.db", "list", "--run", runs[0], "--kind", "param", "--json").json
    assert {t["reference"] for t in told} == {f"bias@{runs[0]}:{s}" for s in (-1, 2)}
    assert [r["key"] for r in cli("ws", "runs.db", "list", "runs", "--json").json] == runs
    assert runs[0] in cli("ws", "runs.db", "list", "runs").out
    assert cli("ws", "runs.db", "list", "runs", "--kind", "param").code == 2


def test_look_at_a_tensor(cli, runs):
    out = cli("ws", "runs.db", "load", "x").out
    x = train_inputs()["x"]
    assert "f32[4, 2], input" in out
    assert f"min {x.min():.6g}" in out and f"{float(x.flat[0]):.4g}" in out
    told = cli("ws", "runs.db", "load", "x", "--json").json
    assert told["shape"] == [4, 2] and told["values"] == x.astype(float).tolist()


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors"])
def test_tensors_to_files_and_back(cli, runs, suffix):
    outcome = cli("ws", "runs.db", "load", "x", "-o", f"x{suffix}")
    assert outcome.code == 0 and f"wrote x{suffix}" in outcome.err
    assert (arrays.load(f"x{suffix}") == train_inputs()["x"]).all()
    outcome = cli("ws", "runs.db", "save", f"again=x{suffix}", f"more=x{suffix}")
    assert outcome.code == 0 and "saved again: f32[4, 2]" in outcome.err
    with opstep.Workspace("runs.db") as ws:
        assert (ws["again"] == train_inputs()["x"]).all()


def test_all_params_of_a_run(cli, runs):
    outcome = cli("ws", "runs.db", "load", "--run", runs[0], "--kind", "param", "-o", "p.npz")
    assert outcome.code == 0
    with opstep.Workspace("runs.db") as ws:
        assert (arrays.read_npz("p.npz")["bias"] == ws[f"bias@{runs[0]}:2"]).all()


def test_save_makes_a_workspace(cli):
    np.save("a.npy", np.arange(3))
    assert cli("ws", "new.db", "save", "a=a.npy").code == 0
    assert "a" in cli("ws", "new.db", "list").out


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["load"], "no tensor is named"),
        (["load", "biass"], "did you mean bias?"),
        (["load", "loss"], "is ambiguous"),
        (["load", "x", "-o", "x.txt"], "write to a .npy, .npz or .safetensors file"),
        (["load", "x", "-o", "no/x.npy"], "there is no folder no"),
        (["load", "x", "target", "-o", "x.npy"], "holds one array"),
        (["load", "x@1", "x@2", "-o", "x.npz"], "two of these tensors have one name"),
        (["load", "--kind", "param"], "--kind needs a run"),
        (["load", "--run", "last", "--kind", "saved"], "the run has none"),
        (["save", "a"], "which name, and from where?"),
        (["save", "a="], "which name, and from where?"),
        (["save", "=x.npy"], "is not a name"),
        (["save", "a=no.npy"], "no.npy: there is no such file"),
        (["save", "a=runs.db"], "not a kind of file"),
        (["save", "a@b=x.npy"], "have a meaning of their own"),
        (["save", "a=b.npy", "a=b.npy"], "a was given before"),
        (["export", "stat", "-o", "a.csv"], "did you mean stats?"),
        (["export", "blobs", "-o", "a.csv"], "load NAME -o FILE"),
        (["export", "stats", "-o", "a.xls"], "write to a .csv"),
        (["export", "stats", "--run", "77", "-o", "a.csv"], "there is no run 77"),
        (["plot", "stats.meen"], "did you mean mean?"),
        (["plot", "stats.mean", "-o", "a.gif"], "write to a .png, .svg or .pdf"),
        (["plot", "stats.mean where step=5..1"], "write step=1..5"),
        (["compare", "1", "77"], "there is no run 77"),
        (["rerun", "77"], "there is no run 77"),
        (["prune"], "which runs?"),
        (["prune", "--run", "1"], "add --yes"),
        (["prune", "--run", "77", "--yes"], "there is no run 77"),
        (["prune", "--older-than", "soon"], "is not an age: write 30d"),
        (["prune", "--larger-than", "big"], "is not a size: write 500M"),
        (["sql", "select 1", "--csv", "--json"], "which of them?"),
        (["sql", "select 1", "--timeout", "0"], "0"),
        (["sql", "select 1", "--timeout", "nan"], "nan is not a number"),
        (["sql", "-- nothing but a comment"], "there is no SQL in it"),
    ],
)
def test_what_does_not_fit(cli, runs, arguments, message):
    np.save("b.npy", np.arange(3))
    outcome = cli("ws", "runs.db", *arguments)
    assert outcome.code == 2
    assert message in " ".join(outcome.err.split())
    with opstep.Workspace("runs.db") as ws:
        assert len(ws.runs) == 2 and not ws.tensors(kind="saved")


# --- SQL and export -------------------------------------------------------------------------------


def test_sql_as_table_csv_and_json(cli, runs):
    text = "select key, steps, null as none, x'00ff' as raw from runs order by id"
    table = cli("ws", "runs.db", "sql", text)
    assert table.code == 0 and table.err == ""
    assert runs[0] in table.out and "null" in table.out and "<2 bytes>" in table.out
    rows = list(csv.reader(cli("ws", "runs.db", "sql", text, "--csv").out.splitlines()))
    assert rows == [["key", "steps", "none", "raw"], *[[k, "3", "", "00ff"] for k in runs]]
    told = cli("ws", "runs.db", "sql", text, "--json").json
    assert told[1] == {"key": runs[1], "steps": 3, "none": None, "raw": "00ff"}
    assert cli("ws", "runs.db", "sql", "select 1 where 0", "--json").json == []
    commented = cli("ws", "runs.db", "sql", "-- of one\nselect 1 as n", "--json")
    assert commented.json == [{"n": 1}]


def test_sql_shows_so_many_rows(cli, runs):
    many = (
        "with recursive n(x) as (select 1 union all select x + 1 from n limit 500) select x from n"
    )
    outcome = cli("ws", "runs.db", "sql", many)
    assert len(outcome.out.splitlines()) == 101
    assert "only 100 rows" in outcome.err
    assert len(cli("ws", "runs.db", "sql", many, "--limit", "500").out.splitlines()) == 501
    assert cli("ws", "runs.db", "sql", many, "--limit", "500").err == ""
    assert len(cli("ws", "runs.db", "sql", many, "--csv").out.splitlines()) == 501
    assert len(cli("ws", "runs.db", "sql", many, "--json", "--limit", "7").json) == 7


def test_sql_writes_only_where_it_may(cli, runs):
    text = "update runs set file = 'other.opg' where id = 1"
    outcome = cli("ws", "runs.db", "sql", text)
    assert outcome.code == 2 and "--write" in outcome.err
    assert cli("ws", "runs.db", "sql", text, "--write").code == 0
    assert "other.opg" in cli("ws", "runs.db", "list", "runs").out
    for text in ("attach 'x.db' as x", "pragma journal_mode = delete", "begin"):
        assert cli("ws", "runs.db", "sql", text, "--write").code == 2


def test_endless_sql(cli, runs):
    endless = (
        "with recursive n(x) as (select 1 union all select x + 1 from n) select count(*) from n"
    )
    outcome = cli("ws", "runs.db", "sql", endless, "--timeout", "0.2")
    assert outcome.code == 2 and "took longer than 0.2 s" in outcome.err


def test_export(cli, runs):
    outcome = cli("ws", "runs.db", "export", "metrics", "--run", runs[1], "-o", "m.csv")
    assert outcome.code == 0 and "6 rows" in outcome.err
    with opstep.Workspace("runs.db") as ws:
        losses = ws.run(2).metric("loss")
        stats = ws.run(2).stats()
    rows = list(csv.DictReader(Path("m.csv").read_text().splitlines()))
    assert [float(r["value"]) for r in rows if r["name"] == "loss"] == losses
    cli("ws", "runs.db", "export", "metrics", "-o", "m.json")
    found = json.loads(Path("m.json").read_text())
    assert [r["value"] for r in found if r["run"] == 2 and r["name"] == "loss"] == losses
    cli("ws", "runs.db", "export", "stats", "--run", "2", "-o", "s.npz")
    made = np.load("s.npz")
    assert made["absmax"].tolist() == [s.statistics.absmax for s in stats]
    assert made["step"].dtype == np.int64
    outcome = cli("ws", "runs.db", "export", "stats", "--run", "2", "-o", "s.safetensors")
    assert "left out, being texts: histogram" in outcome.err
    assert arrays.read_safetensors("s.safetensors")["absmax"].tolist() == made["absmax"].tolist()
    outcome = cli("ws", "runs.db", "export", "runs", "--run", "1", "-o", "r.json")
    assert [r["key"] for r in json.loads(Path("r.json").read_text())] == runs[:1]


def test_plot_on_a_logarithmic_scale(cli, runs):
    pytest.importorskip("matplotlib")
    drawn = []
    for log in ([], ["--log"]):
        plot = ["plot", "stats.absmax where run=*", "-o", "a.svg", *log]
        assert cli("ws", "runs.db", *plot).code == 0
        drawn.append(re.findall(r'd="(M [^"]*)"', Path("a.svg").read_text()))
    assert drawn[0] != drawn[1]
    cli("ws", "runs.db", *plot)
    assert re.findall(r'd="(M [^"]*)"', Path("a.svg").read_text()) == drawn[1]
    done = cli("ws", "runs.db", "plot", "stats.nan where op=relu", "--log")
    assert done.code == 2 and "no figure is above 0" in done.err


def test_plot(cli, runs):
    pytest.importorskip("matplotlib")
    outcome = cli("ws", "runs.db", "plot", "stats.absmax where op=relu, run=*")
    assert outcome.code == 0 and "wrote plot.png: 2 lines, 6 points" in outcome.err
    assert Path("plot.png").read_bytes()[:4] == b"\x89PNG"
    assert cli("ws", "runs.db", "plot", "metrics.loss", "-o", "loss.svg").code == 0
    assert "<svg" in Path("loss.svg").read_text()


# --- runs -----------------------------------------------------------------------------------------


def test_compare(cli, runs):
    outcome = cli("ws", "runs.db", "compare", *runs)
    assert outcome.code == 1
    for word in ("first: square gives q in step 0", "train.opg:9", "q = square(d)", "absmax",
                 "-  q = square(d)", "+  q = abs(d)", "differ at the end: loss"):  # fmt: skip
        assert word in outcome.out, outcome.out
    told = cli("ws", "runs.db", "compare", "1", "last", "--json").json
    assert told["first"]["site"] == "main/q" and not told["same"]
    outcome = cli("ws", "runs.db", "compare", "1", "1")
    assert outcome.code == 0 and "same" in outcome.out


def test_rerun(cli, runs):
    outcome = cli("ws", "runs.db", "rerun", runs[0])
    assert outcome.code == 0 and "same bits" in outcome.out
    told = cli("ws", "runs.db", "rerun", "1", "--record", "--json").json
    assert told["identical"] and told["recorded_as"] not in (*runs, None)
    assert cli("ws", "runs.db", "compare", "1", told["recorded_as"]).code == 0
    text = "update runs set program = (select program from runs where id = 2) where id = 1"
    assert cli("ws", "runs.db", "sql", text, "--write").code == 0
    outcome = cli("ws", "runs.db", "rerun", "1")
    assert outcome.code == 1 and "differs: loss" in outcome.out
    assert "--record" in outcome.err


def test_prune(cli, runs, tmp_path):
    record(tmp_path / "runs.db", inputs=train_inputs(rows=50_000))
    outcome = cli("ws", "runs.db", "prune", "--larger-than", "1M", "--dry-run")
    assert outcome.code == 0
    keys = [line.split()[0] for line in outcome.out.splitlines()[1:]]
    assert len(keys) == 1 and keys[0] not in runs
    assert "nothing to remove" in cli("ws", "runs.db", "prune", "--older-than", "1d", "--yes").err
    assert "nothing to remove" in cli("ws", "runs.db", "prune", "--keep-last", "3", "--yes").err
    outcome = cli("ws", "runs.db", "prune", "--keep-last", "2", "--older-than", "0s", "--yes")
    assert outcome.code == 0 and "removed 1 run" in outcome.err and "smaller" in outcome.err
    outcome = cli("ws", "runs.db", "prune", "--larger-than", "1M", "--run", runs[1], "--yes")
    assert "removed 2 runs" in outcome.err
    assert "0 runs" in cli("ws", "runs.db").out


def test_prune_spares_what_runs(cli, runs):
    text = "update runs set status = 'running', ended = null where id = 1"
    assert cli("ws", "runs.db", "sql", text, "--write").code == 0
    assert "removed 1 run" in cli("ws", "runs.db", "prune", "--keep-last", "0", "--yes").err
    assert cli("ws", "runs.db", "list", "runs", "--json").json[0]["id"] == 1
    named = cli("ws", "runs.db", "prune", "--run", "1", "--yes")
    assert named.code == 2
    assert "is under way" in named.err


def test_a_run_that_was_killed(cli, runs):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    text = f"update runs set status = 'running', ended = null, pid = {gone.pid} where id = 1"
    assert cli("ws", "runs.db", "sql", text, "--write").code == 0
    assert "2 runs (1 killed)" in cli("ws", "runs.db").out
    assert cli("ws", "runs.db", "rerun", "1").code == 0
    assert "removed 2 runs" in cli("ws", "runs.db", "prune", "--keep-last", "0", "--yes").err


def test_open(cli, runs, monkeypatch):
    from opstep.trace.workspace import datasette

    calls = []
    monkeypatch.setattr(datasette, "serve", lambda *given: calls.append(given))
    assert cli("ws", "runs.db", "open").code == 0
    assert cli("ws", "runs.db", "open", "--port", "8123", "--no-browser").code == 0
    assert calls == [("runs.db", 0, True), ("runs.db", 8123, False)]
