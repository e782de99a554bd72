"""The tree of recorded runs: what the language server tells of workspaces."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pytest
from lsp_client import ServerError
from workspace_client import STEPS, Asking, asking, make
from workspaces import TRAIN, train_inputs, train_program

import opstep


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> tuple[Path, list[str]]:
    path = tmp_path_factory.mktemp("workspace") / "runs.db"
    keys = make(path)
    with opstep.Workspace(path) as ws:
        ws["by.hand"] = np.arange(6, dtype=np.float32).reshape(2, 3)
        ws["not a word"] = np.zeros(2, np.int64)
    return path, keys


@pytest.fixture(scope="module")
def ask(made):
    with asking(made[0]) as asked:
        yield asked


def test_runs_come_with_what_a_tree_shows_of_them(made, ask: Asking):
    path, keys = made
    told = ask("runs")
    assert told["count"] == 3
    assert [run["key"] for run in told["runs"]] == keys[::-1]
    bad, *trained = told["runs"]
    assert (bad["status"], bad["findings"], bad["steps"], bad["underWay"]) == ("done", 1, 5, False)
    assert [run["findings"] for run in trained] == [0, 0]
    assert bad["seconds"] > 0 and "program" not in bad
    assert bad["place"] == str(path.parent / "roots.opg")
    assert [r["key"] for r in ask("runs", offset=1, limit=1)["runs"]] == [keys[1]]


def test_a_run_whose_process_is_gone_was_killed(tmp_path, made):
    path = tmp_path / "killed.db"
    shutil.copy(made[0], path)
    connection = sqlite3.connect(path)
    connection.execute(
        "update runs set status = 'running', ended = null, pid = 999999 where id = 1"
    )
    connection.commit()
    connection.close()
    with asking(path) as ask:
        assert ask("run", run=1)["status"] == "killed"
        assert ask("examine")["running"] == 1


def test_one_run_with_its_numbers(made, ask: Asking):
    told = ask("run", run=made[1][0])
    assert told["ops"] == 9
    assert told["executions"] == 9 * STEPS
    assert [m["name"] for m in told["metrics"]] == ["loss", "seconds"]
    assert {m["step"] for m in told["metrics"]} == {STEPS - 1}
    curves = [m["curve"] for m in told["metrics"]]
    assert [len(curve) for curve in curves] == [min(STEPS, 8)] * 2
    assert [curve[-1] for curve in curves] == [m["value"] for m in told["metrics"]]
    assert told["totalNs"] > 0
    assert ask("run", run="last")["metrics"][1] == {
        "name": "total",
        "step": 4,
        "value": None,
        "curve": [None] * 5,
    }


def test_steps_come_in_pages_with_metrics_and_with_what_went_bad(made, ask: Asking):
    first = ask("steps", run=made[1][0], first=10, limit=3)["steps"]
    assert [s["step"] for s in first] == [10, 11, 12]
    assert all(s["ns"] > 0 and s["odd"] == 0 and s["metrics"]["loss"] > 0 for s in first)
    bad = ask("steps", run="last")["steps"]
    assert [(s["step"], s["odd"]) for s in bad] == [(k, 3) for k in range(5)]
    assert ask("steps", run="last", first=5)["steps"] == []


def test_findings_have_a_place_and_a_report(made, ask: Asking):
    (finding,) = ask("findings", run="last")["findings"]
    assert (finding["kind"], finding["line"], finding["value"]) == ("nan", 3, "root")
    assert finding["place"] == str(made[0].parent / "roots.opg")
    told = ask("report", run="last", finding=finding["id"])
    assert told["tensor"] == {"op": "sqrt", "type": "f32[3]", "nan": 1, "count": 1}
    report = told["text"]
    assert "roots.opg:3" in report and "root = sqrt(moved)" in report
    assert "moved: f32[3]  mean 0.8333" in report
    assert "root: f32[3]  mean 1.207  std 0.2071  min 1  max 1.414  1 NaN  of 3" in report
    with pytest.raises(ServerError, match="this finding is gone"):
        ask("report", run=1, finding=finding["id"])


def test_slowest_ops_come_first_and_say_their_lines(ask: Asking):
    told = ask("slowest", run=1, limit=4)
    times = [op["total_ns"] for op in told["ops"]]
    assert times == sorted(times, reverse=True) and len(times) == 4
    assert sum(times) <= told["totalNs"]
    line = {op["statement"]: op["line"] for op in ask("slowest", run=1)["ops"]}
    assert line["q = square(d)"] == 9


def test_the_program_as_it_ran_and_whether_the_file_is_still_the_same(tmp_path, made):
    path = tmp_path / "runs.db"
    shutil.copy(made[0], path)
    with asking(path) as ask:
        assert ask("program", run=1) == {
            "text": TRAIN, "file": "train.opg", "place": None, "same": False
        }  # fmt: skip
        (tmp_path / "train.opg").write_text(TRAIN)
        told = ask("program", run=1)
        assert (told["place"], told["same"]) == (str(tmp_path / "train.opg"), True)
        assert ask("program", run=2)["same"] is False


def test_places_of_ops(made, ask: Asking):
    folder = made[0].parent
    told = ask("place", run=1, site="main/q")
    assert told == {
        "place": str(folder / "train.opg"), "line": 9, "statement": "q = square(d)"
    }  # fmt: skip
    assert ask("place", run="last", op=1)["line"] == 3
    assert ask("place", run=1, line=7)["line"] == 7


def test_the_schema_has_the_meaning_of_each_column_and_names_for_plots(made, ask: Asking):
    told = ask("schema")
    tables = {t["name"]: t for t in told["tables"]}
    assert tables["first_bad"]["kind"] == "view" and tables["stats"]["kind"] == "table"
    for table in tables.values():
        assert table["what"] and all(c["what"] or table["kind"] == "view" for c in table["columns"])
    assert {"relu", "linear"} <= set(told["names"]["op"])
    assert told["names"]["metric"] == ["loss", "seconds", "total"]
    assert told["runs"] == made[1][::-1]
    assert list(told["titles"]) == told["runs"] and "main" in told["titles"][told["runs"][0]]
    assert told["recorded"] == ["metrics", "stats", "executions"]


def test_every_example_has_an_answer(ask: Asking):
    examples = ask("schema")["examples"]
    assert len(examples) >= 8
    for example in examples:
        answer = ask.whole(example["sql"])
        assert answer["problem"] is None and answer["columns"], example["title"]
    bad = next(e for e in examples if "NaN" in e["title"])
    assert [row[1] for row in ask.whole(bad["sql"])["rows"]] == [0]


# --- tensors --------------------------------------------------------------------------------------


def test_tensors_by_name_with_their_versions(made, ask: Asking):
    names = {n["name"]: n["versions"] for n in ask("tensors", run=1)["names"]}
    assert [v["step"] for v in names["bias"]] == [-1, STEPS - 1]
    assert {v["type"] for v in names["bias"]} == {"f32[3]"}
    assert names["x"][0]["reference"] == f"x@{made[1][0]}:-1"
    saved = ask("tensors")["names"]
    assert [n["name"] for n in saved] == ["by.hand", "not a word"]


def test_kept_tensors_answer_as_those_of_the_debugger_do(ask: Asking):
    by_hand, spaced = (n["versions"][0]["id"] for n in ask("tensors")["names"])
    about = {"tensor": by_hand}
    assert ask("tensorType", expression="by.hand", **about) == {
        "type": "f32[2, 3]", "dtype": "f32", "shape": [2, 3]
    }  # fmt: skip
    told = ask("tensorSlice", expression="by.hand[1, ::2]", **about)
    assert np.frombuffer(base64.b64decode(told["data"]), "<f4").tolist() == [3, 5]
    assert ask("tensorSlice", expression="by.hand", maxElements=4, **about)["steps"] == [1, 2]
    figures = ask("statistics", expression="by.hand * 2", **about)["statistics"]
    assert (figures["max"], figures["count"], figures["zero"]) == (10, 6, 1)
    assert ask("histogram", expression="by.hand", bins=2, **about)["counts"] == [3, 3]
    assert ask("tensorType", tensor=spaced, expression="value")["type"] == "i64[2]"
    with pytest.raises(ServerError, match="column 5: there is no nope here"):
        ask("tensorType", expression="1 + nope", **about)
    with pytest.raises(ServerError, match="this tensor is gone"):
        ask("tensorType", tensor=10_000, expression="x")


def test_kept_tensors_of_other_steps_and_runs(made, ask: Asking):
    bias = {n["name"]: n["versions"] for n in ask("tensors", run=1)["names"]}["bias"]
    about = {"tensor": bias[-1]["id"]}
    now = ask("statistics", expression="bias", **about)["statistics"]["absmax"]
    before = ask("statistics", expression=f"bias@-{STEPS}", **about)["statistics"]["absmax"]
    assert before == 1.0 and now < 1e-6
    other = made[1][1]
    zero = ask("statistics", expression=f'bias - bias@"{other}"', **about)["statistics"]
    assert zero["zero"] == 3
    with pytest.raises(ServerError, match="nothing was kept of step 28: there are -1, 29"):
        ask("statistics", expression="bias@-1", **about)
    history = ask("statisticsHistory", name="bias", count=4, **about)["entries"]
    assert [entry["step"] for entry in history] == [26, 27, 28, 29]
    assert [entry["statistics"]["absmax"] for entry in history] == [0.5**k for k in range(27, 31)]


# --- files that are none --------------------------------------------------------------------------


def seen(path: Path) -> dict[str, str]:
    return {
        p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in path.iterdir() if p.is_file()
    }


BROKEN = {
    "foreign": (lambda p, good: sqlite3.connect(p).execute("create table t (x)").close(), "else"),
    "text": (lambda p, good: p.write_text("not a database at all"), "not an SQLite file"),
    "empty": (lambda p, good: p.write_bytes(b""), "nothing was recorded"),
    "newer": (lambda p, good: version(p, good, 99), "newer opstep"),
    "older": (lambda p, good: version(p, good, 1), "older opstep"),
    "damaged": (lambda p, good: truncated(p, good), "damaged"),
    "absent": (lambda p, good: None, "there is no file"),
}
KINDS = {"text": "foreign"}


def version(path: Path, good: Path, number: int) -> None:
    shutil.copy(good, path)
    connection = sqlite3.connect(path)
    connection.execute(f"pragma user_version = {number}")
    connection.commit()
    connection.close()


def truncated(path: Path, good: Path) -> None:
    content = good.read_bytes()
    path.write_bytes(content[: len(content) // 3])


@pytest.mark.parametrize("case", BROKEN)
def test_files_that_cannot_be_shown_say_why_and_stay_as_they_are(tmp_path, made, case):
    path = tmp_path / "x.db"
    breaks, words = BROKEN[case]
    breaks(path, made[0])
    before = seen(tmp_path)
    with asking(path) as ask:
        told = ask("examine")
        if told["kind"] == "workspace":  # the part that is there can be read: no page is missed yet
            assert case == "damaged"
            told = ask.whole("select count(*), sum(length(data)) from blobs")["problem"]
            assert "damaged" in told["message"] or "malformed" in told["message"]
        else:
            assert told["kind"] == KINDS.get(case, case)
            assert words in told["message"] and told["hint"] + told["message"]
            with pytest.raises(ServerError, match=words):
                ask("runs")
            answer = ask("query", query="a", sql="select 1")
            assert answer["done"] and answer["problem"]["kind"] == told["kind"]
    after = seen(tmp_path)
    assert {k: v for k, v in after.items() if not k.endswith(("-wal", "-shm"))} == before


def test_a_locked_file_is_told_soon_and_read_once_it_is_free(tmp_path, made):
    path = tmp_path / "runs.db"
    shutil.copy(made[0], path)
    locker = sqlite3.connect(path, isolation_level=None)
    locker.execute("pragma journal_mode = delete")
    locker.execute("begin exclusive")
    with asking(path) as ask:
        told = ask("examine")
        assert told["kind"] == "locked" and "another process is writing" in told["message"]
        locker.execute("commit")
        locker.close()
        assert ask("examine")["kind"] == "workspace"


def test_workspaces_are_found_among_other_databases(tmp_path, made):
    shutil.copy(made[0], tmp_path / "good.db")
    version(tmp_path / "old.db", made[0], 1)
    sqlite3.connect(tmp_path / "other.db").execute("create table t (x)").close()
    (tmp_path / "text.db").write_text("x" * 200)
    (tmp_path / "folder.db").mkdir()
    with asking(made[0]) as ask:
        paths = [str(p) for p in sorted(tmp_path.iterdir())] + [str(tmp_path / "gone.db")]
        files = ask("find", paths=paths)["files"]
    assert [(Path(f["path"]).name, f["kind"]) for f in files] == [
        ("good.db", "workspace"), ("old.db", "older"),
    ]  # fmt: skip


def test_a_run_is_seen_while_it_is_written(tmp_path):
    path = tmp_path / "live.db"
    seen: list[tuple[str, int]] = []
    with asking(path) as ask:
        with opstep.Recording(workspace=path) as recording:

            def look() -> None:
                recording.barrier()  # what is known by now is in the file
                assert ask("find", paths=[str(path)])["files"]
                run = ask("runs")["runs"][0]
                seen.append((run["status"], run["steps"]))

            train_program().run("main", train_inputs(), recording=recording, steps=40, on_step=look)
        stamp = ask("examine")["stamp"]
        assert ask("find", paths=[str(path)])["files"][0]["stamp"] == stamp
        assert ask("runs")["runs"][0]["steps"] == 40
        assert {status for status, _ in seen} == {"running"}
        assert seen == sorted(seen, key=lambda s: s[1]), "steps never go back"
        with opstep.Workspace(path) as ws:
            ws["x"] = np.zeros(3, np.float32)
        assert ask("examine")["stamp"] != stamp


@pytest.mark.parametrize(
    "what, params",
    [
        ("runs", {"path": 3}), ("runs", {"path": ""}), ("run", {}), ("run", {"run": True}),
        ("steps", {"run": 1, "first": "x"}), ("find", {"paths": "a.db"}), ("query", {"query": "a"}),
        ("tensorSlice", {"tensor": "x"}), ("report", {"run": 1}), ("rows", {"query": "never"}),
        ("copy", {"query": "never", "format": "csv"}), ("program", {"run": "ffff"}),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_in_words(ask: Asking, what, params):
    with pytest.raises(ServerError) as caught:
        ask(what, **params)
    assert caught.value.message and "Traceback" not in caught.value.message
    assert ask("runs")["count"] == 3, "the server goes on"


def test_a_file_whose_rows_never_end_is_damaged(tmp_path, made):
    """Files of a folder are looked at unasked: what stands in for a table must not be run."""
    path = tmp_path / "x.db"
    shutil.copy(made[0], path)
    connection = sqlite3.connect(path)
    connection.execute("drop table runs")
    connection.execute(
        "create view runs as with recursive t(x) as (select 1 union all select x + 1 from t) "
        "select x as id, x as began, 'running' as status from t"
    )
    connection.close()
    with asking(path) as ask:
        (told,) = ask("find", paths=[str(path), "a\0b", "\ud800", "x" * 5000])["files"]
        assert (told["kind"], "runs is not a table" in told["message"]) == ("damaged", True)
        for request in ("runs", "schema"):
            with pytest.raises(ServerError, match="runs is not a table"):
                ask(request)


def test_a_file_without_a_table_is_damaged(tmp_path, made):
    path = tmp_path / "x.db"
    shutil.copy(made[0], path)
    connection = sqlite3.connect(path)
    connection.execute("drop table metrics")
    connection.close()
    with asking(path) as ask:
        assert "metrics is missing" in ask("examine")["message"]


def test_a_program_that_is_a_pipe_is_not_waited_for(tmp_path, made):
    path = tmp_path / "x.db"
    shutil.copy(made[0], path)
    os.mkfifo(tmp_path / "pipe.opg")
    connection = sqlite3.connect(path)
    connection.execute("update runs set file = ?", (str(tmp_path / "pipe.opg"),))
    connection.commit()
    connection.close()
    with asking(path) as ask:
        told = ask("program", run=1)
        assert told["text"] and told["place"] is None and not told["same"]


def test_a_path_that_no_file_can_have(tmp_path):
    with asking(tmp_path / ("x" * 5000)) as ask:
        assert ask("examine")["kind"] == "unreadable"


@pytest.mark.parametrize("given", ["\ud800", "a\udfffb"])
def test_half_characters_name_nothing(ask, given):
    with pytest.raises(ServerError, match=r"run: expected|half a character"):
        ask("tensors", run=given)
    with pytest.raises(ServerError, match="half a character"):
        ask("query", query="half", sql=f"select '{given}'")


def test_a_range_beyond_all_numbers(ask):
    (tensor,) = ask("tensors")["names"][0]["versions"]
    with pytest.raises(ServerError, match="f64"):
        ask("histogram", tensor=tensor["id"], low=10**400)


def test_the_root_of_all_folders_is_no_workspace():
    with asking(Path("/")) as ask:
        assert ask("examine")["kind"] == "folder"
