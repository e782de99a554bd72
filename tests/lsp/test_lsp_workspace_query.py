"""Questions in SQL over the language server: answers, pages, order, errors."""

from __future__ import annotations

import csv
import hashlib
import json
import sqlite3
from pathlib import Path

import pytest
from lsp_client import ServerError
from workspace_client import Asking, asking, grown, make

ENDLESS = (
    "with recursive c(x) as (select 1 union all select x + 1 from c) select x from c where x < 0"
)


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("workspace") / "runs.db"
    make(path)
    return path


@pytest.fixture(scope="module")
def ask(path):
    with asking(path) as asked:
        yield asked


def test_an_answer_has_its_rows_and_says_how_it_went(ask: Asking):
    answer = ask.whole("select id, graph, null as void, x'00ff' as raw, 0.5 as half from runs")
    assert answer["columns"] == ["id", "graph", "void", "raw", "half"]
    assert answer["kinds"] == ["number", "text", "", "bytes", "number"]
    assert answer["rows"] == [[k, "main", None, {"bytes": 2}, 0.5] for k in (1, 2, 3)]
    assert (answer["count"], answer["done"], answer["more"]) == (3, True, False)
    assert answer["problem"] is None and answer["seconds"] < 10


def test_what_json_would_spoil_comes_with_its_kind(ask: Asking):
    answer = ask.whole(
        "select 9007199254740993 as big, 9e999 as inf, -9e999 as low, "
        "replace(hex(zeroblob(600)), '0', 'x') as long"
    )
    big, inf, low, long = answer["rows"][0]
    assert (big, inf, low) == ({"int": "9007199254740993"}, {"float": "inf"}, {"float": "-inf"})
    assert long == {"text": "x" * 500, "length": 1200}
    whole = ask("field", query="q", row=0, of=3)
    assert whole["text"] == "x" * 1200


def test_rows_beyond_the_first_come_by_page_in_any_order(ask: Asking):
    answer = ask.whole("select step, op, absmax from stats where run = 1 order by step, op")
    count = answer["count"]
    assert len(answer["rows"]) == 200 < count
    page = ask("rows", query="q", offset=count - 2, limit=50)["rows"]
    assert [row[0] for row in page] == [29, 29]
    values = sorted(row[2] for row in _all(ask, count))
    up = ask("rows", query="q", offset=0, limit=3, column=2)["rows"]
    assert [row[2] for row in up] == values[:3]
    down = ask("rows", query="q", offset=1, limit=3, column=2, descending=True)["rows"]
    assert [row[2] for row in down] == values[::-1][1:4]
    with pytest.raises(ServerError, match="no column 9"):
        ask("rows", query="q", offset=0, limit=3, column=9)


def _all(ask: Asking, count: int) -> list[list]:
    return [
        r for k in range(0, count, 100) for r in ask("rows", query="q", offset=k, limit=100)["rows"]
    ]


def test_nulls_stand_last_in_either_order(ask: Asking):
    ask.whole("select column1 as x from (values (2), (null), (1))")
    for descending, rows in ((False, [[1], [2], [None]]), (True, [[2], [1], [None]])):
        page = ask("rows", query="q", offset=0, limit=9, column=0, descending=descending)
        assert page["rows"] == rows


@pytest.mark.parametrize(
    "sql, message, hint, marked",
    [
        ("selct 1", 'near "selct": syntax error', "", "selct"),
        ("select absmx from stats", "no such column: absmx", "did you mean absmax?", "absmx"),
        ("select * from rums", "no such table: rums", "did you mean runs?", "rums"),
        ("select '🙂' as a, nope from runs", "no such column: nope", None, "nope"),
        ("select count(* from runs", 'near "from": syntax error', None, "from"),
        ("-- only words", "there is no SQL in it", "such as: select * from runs", None),
        ("select 1; select 2", "these are several statements; give one", None, None),
    ],
)
def test_errors_stand_at_their_place_with_a_hint(ask: Asking, sql, message, hint, marked):
    problem = ask.whole(sql)["problem"]
    assert problem["message"] == message
    assert hint is None or problem["hint"] == hint
    if marked:
        units = sql.encode("utf-16-le")[2 * problem["start"] : 2 * problem["end"]]
        assert units.decode("utf-16-le") == marked


@pytest.mark.parametrize(
    "sql",
    [
        "delete from runs", "update runs set key = 'x'", "drop table stats", "vacuum",
        "insert into metrics values (1, 1, 'x', 1)", "create table t (x)", "attach 'x.db' as x",
        "pragma user_version = 7", "begin immediate", "select load_extension('x')",
        "create temp table t (x)", "with a as (select 1) delete from runs",
    ],
)  # fmt: skip
def test_nothing_that_writes_is_done(path, ask: Asking, sql):
    before = hashlib.sha256(path.read_bytes()).hexdigest()
    problem = ask.whole(sql)["problem"]
    assert problem["kind"] in ("refused", "wrong") and problem["message"]
    if "would write" in problem["message"]:
        assert "--write" in problem["hint"]
    assert hashlib.sha256(path.read_bytes()).hexdigest() == before
    assert ask.whole("select count(*) from runs")["rows"] == [[3]]


def test_an_endless_question_is_stopped_and_others_are_answered_meanwhile(ask: Asking):
    answer = ask("query", query="endless", sql=ENDLESS)
    assert not answer["done"] and answer["rows"] == []
    assert ask.whole("select 1")["rows"] == [[1]]
    ask("stop", query="endless")
    answer = ask("rows", query="endless", beyond=0)
    assert answer["done"] and answer["problem"]["kind"] == "stopped"


def test_an_answer_that_is_stopped_keeps_the_rows_that_are_there(ask: Asking):
    rows = "with recursive c(x) as (select 1 union all select x + 1 from c) select x from c"
    answer = ask("query", query="many", sql=rows)
    assert answer["rows"][:3] == [[1], [2], [3]]
    ask("stop", query="many")
    answer = ask("rows", query="many", beyond=10**9, offset=0, limit=2)
    while not answer["done"]:
        answer = ask("rows", query="many", beyond=10**9, offset=0, limit=2)
    assert answer["problem"]["kind"] == "stopped" or answer["more"]
    assert answer["rows"] == [[1], [2]]
    ask("close", query="many")
    with pytest.raises(ServerError, match="this answer is gone"):
        ask("rows", query="many")


def test_a_question_of_the_same_name_takes_the_place_of_the_one_before(ask: Asking):
    ask("query", query="same", sql=ENDLESS)
    assert ask.whole("select 7", query="same")["rows"] == [[7]]


def test_only_so_many_answers_are_kept(ask: Asking):
    for k in range(12):
        ask.whole(f"select {k}", query=f"kept-{k}")
    assert ask("rows", query="kept-11", limit=1)["rows"] == [[11]]
    with pytest.raises(ServerError, match="gone"):
        ask("rows", query="kept-0", limit=1)


def test_rows_are_copied_in_the_order_that_is_shown(ask: Asking):
    ask.whole("select column1 as n, column2 as t from (values (2, 'b|c'), (1, null), (3, 'a'))")
    assert ask("copy", query="q", format="csv")["text"] == "n,t\n2,b|c\n1,\n3,a\n"
    table = ask("copy", query="q", format="markdown", column=0, limit=2)["text"]
    assert table == "| n | t |\n|---:|---|\n| 1 |  |\n| 2 | b\\|c |\n"
    text = ask("copy", query="q", format="json", columns=[1], offset=2)["text"]
    assert json.loads(text) == [{"t": "a"}]
    with pytest.raises(ServerError, match="csv, json, markdown"):
        ask("copy", query="q", format="xml")


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_all_rows_are_exported(tmp_path, ask: Asking, kind):
    target = tmp_path / f"out.{kind}"
    sql = "select step, name, value from metrics where run = 1"
    told = ask("export", query="e", sql=sql, file=str(target), format=kind)
    assert told["rows"] == 60 and told["bytes"] == target.stat().st_size
    text = target.read_text()
    found = json.loads(text) if kind == "json" else list(csv.DictReader(text.splitlines()))
    assert len(found) == 60 and found[0]["name"] == "loss"


def test_an_export_that_fails_leaves_what_was_there(tmp_path, ask: Asking):
    target = tmp_path / "out.csv"
    target.write_text("precious")
    told = ask("export", query="e", sql="select nope from runs", file=str(target), format="csv")
    assert told["problem"]["message"] == "no such column: nope"
    assert target.read_text() == "precious"
    gone = tmp_path / "no" / "out.csv"
    told = ask("export", query="e", sql="select 1", file=str(gone), format="csv")
    assert told["problem"]["message"]


def test_the_workspace_is_free_for_writers_once_an_answer_is_read(tmp_path):
    path = tmp_path / "runs.db"
    make(path)
    with asking(path) as ask:
        ask.whole("select * from stats")
        writer = sqlite3.connect(path)
        busy, *_ = writer.execute("pragma wal_checkpoint(truncate)").fetchone()
        writer.close()
    assert busy == 0, "no reader holds an old state of the file"


# --- many rows ------------------------------------------------------------------------------------


def test_many_rows_are_paged_and_sorted(tmp_path):
    path = tmp_path / "big.db"
    grown(path, 30_000)
    with sqlite3.connect(path) as reader:
        (count,) = reader.execute("select count(*) from stats").fetchone()
    with asking(path) as ask:
        answer = ask("query", query="q", sql="select * from stats")
        assert answer["count"] >= 200
        while not answer["done"]:
            answer = ask("rows", query="q", beyond=10**9)
        assert (answer["count"], answer["more"]) == (count, False)
        for order in ({}, {"column": 8, "descending": True}):
            found = []
            for offset in range(0, count, 200):
                page = ask("rows", query="q", offset=offset, limit=200, **order)
                found += page["rows"]
            assert len(found) == count
            assert len({tuple(map(str, row[:4])) for row in found}) == count
        steps = ask("run", run="last")["steps"]
        assert len(ask("steps", run="last", first=steps - 100, limit=100)["steps"]) == 100
