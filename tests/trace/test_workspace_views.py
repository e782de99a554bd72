"""Views of a workspace, and the questions that its documentation asks."""

from __future__ import annotations

import json
import re
import sqlite3
from pathlib import Path

import numpy as np
import pytest
from workspaces import CHANGED, ROOTS, record, train_inputs, train_program

import opstep
from opstep.runtime.recording import live_bytes
from opstep.trace.workspace.store import open_reading
from opstep.trace.workspace.views import VIEWS

GUIDE = Path(__file__).parent.parent.parent / "docs" / "workspace.md"
QUERIES = re.findall(r"```sql\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)

MIXED = """\
param w: f32[2] = zeros()

graph main(x: f32[2], y: f32[2]) -> f32[2], f32[2] {
  a = mul(x, w)
  b = log(y)
  c = add(a, b)
  w <- c
  return a, b
}
"""


def ask(path: Path, sql: str, *given) -> list[tuple]:
    connection = open_reading(path)
    try:
        return connection.execute(sql, given).fetchall()
    finally:
        connection.close()


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """1 and 2: TRAIN and CHANGED, three steps each; 3: ROOTS, with a NaN."""
    path = tmp_path_factory.mktemp("views") / "runs.db"
    record(path, steps=3, tags={"lr": 0.1}, stats_also="quantiles,signed,channels")
    record(path, train_program(CHANGED), steps=3)
    record(path, opstep.loads(ROOTS), {"x": np.array([3.0, 0.5], np.float32)})
    return path


@pytest.mark.parametrize("query", QUERIES, ids=lambda q: " ".join(q.split()[:4]))
def test_the_guides_questions_can_be_asked(runs, query):
    connection = open_reading(runs)
    found = connection.execute(query)
    assert found.description
    rows = found.fetchall()
    connection.close()
    dead = "zero > 0.95" in query or "zero = c.finite" in query
    assert rows or dead, "there is no dead relu"


def test_what_the_guide_finds(runs):
    queries = {re.search(r"\bfrom (\w+)", q)[1]: q for q in QUERIES}
    assert ask(runs, queries["first_bad"])[0][:2] == (0, "main/root")
    (first, *_) = ask(runs, queries["run_compare"])
    assert first[:4] == ("main/q", 9, "q", 2), "the op that was changed"


@pytest.mark.parametrize("view", VIEWS, ids=lambda v: v.name)
def test_views_have_the_columns_that_are_described(runs, view):
    connection = open_reading(runs)
    found = [c[0] for c in connection.execute(f"select * from {view.name}").description]
    connection.close()
    described: list[str] = []
    for name, _ in view.columns:
        described += name.split(", ")
    if "min … unwritten" in described:
        k = described.index("min … unwritten")
        described[k : k + 1] = found[k:]
    if view.name == "run_compare":
        assert found[: len(described)] == described
    else:
        assert found == described


@pytest.mark.parametrize(
    "query",
    [
        "select * from first_bad where run = 1",
        "select * from slowest_ops where run = 1 order by total_ns desc",
        "select * from stat_history where run = 1 and value = 'loss'",
        "select * from stat_history where run = 1 and site = 'main/loss'",
        "select * from memory_peak where run = 1",
        "select * from run_compare where run = 1 and other = 2 order by op",
    ],
)
def test_views_do_not_read_all_statistics(runs, query):
    plan = [row[3] for row in ask(runs, f"explain query plan {query}")]
    # rows of all ops and steps of a run are not searched for one that fits
    tables = "[szbf]" if "memory_peak" in query else "[szbfp]"
    for line in plan:
        assert not re.match(r"SCAN (stats|executions)\b", line), plan
        if re.match(rf"SEARCH {tables}\b", line):
            assert line.count("=?") >= 2 or "stats_by_run_step" in line, plan


def first_bad(path: Path, run: int) -> tuple:
    (row,) = ask(path, "select step, site, value, nan, verdict from first_bad where run = ?", run)
    return row


def test_where_a_nan_was_born(tmp_path):
    path = tmp_path / "runs.db"
    nan, one = np.array([np.nan, 1], "f4"), np.ones(2, "f4")
    record(path, opstep.loads(MIXED), {"x": one, "y": -one})
    assert first_bad(path, 1) == (0, "main/b", "b", 2, "origin")
    record(path, opstep.loads(MIXED), {"x": nan, "y": one})
    assert first_bad(path, 2) == (-1, "input/x", "x", 1, "origin")
    record(path, opstep.loads(MIXED), {"x": nan, "y": one}, stats="mul:*,x")
    assert first_bad(path, 3) == (-1, "input/x", "x", 1, "origin")
    record(path, opstep.loads(MIXED), {"x": nan, "y": one}, stats="mul:*")
    assert first_bad(path, 4) == (0, "main/a", "a", 1, None), "its operands are not known"
    record(path, opstep.loads(MIXED), {"x": one, "y": -one}, stats="add:*,log:*", stats_every=1)
    assert first_bad(path, 5)[1:] == ("main/b", "b", 2, None)
    record(path, opstep.loads(MIXED), {"x": one, "y": one})
    assert ask(path, "select run from first_bad order by run") == [(1,), (2,), (3,), (4,), (5,)]


def test_a_nan_that_a_param_brings_into_the_next_step(tmp_path):
    """The update is of step 0; what reads it in step 1 only passes it on."""
    path = tmp_path / "runs.db"
    record(path, opstep.loads(MIXED), {"x": np.ones(2, "f4"), "y": -np.ones(2, "f4")},
           steps=2, stats_every=1)  # fmt: skip
    assert first_bad(path, 1)[:2] == (0, "main/b")
    nans = ask(path, "select step, value, nan from stat_history where run = 1 and nan > 0")
    assert (1, "a", 2) in nans and (0, "a", 2) not in nans


def test_memory_peak_is_the_plans(runs):
    program = train_program()
    plan = program.run("main", train_inputs()).plan
    live = live_bytes(plan)
    op, most, arena = ask(
        runs, "select op, live_bytes, arena_bytes from memory_peak where run = 1"
    )[0]
    assert (op, most) == max(live.items(), key=lambda item: (item[1], -item[0]))
    assert arena == plan.arena


HELD = """
param w: f32[1000] = zeros()
state last: f32[] = 0
graph main(x: f32[1000]) -> f32[] {
  a = relu(x)
  b = add(a, w)
  y = while(a, test=more, body=quarter, limit=9)
  c = add(y, b)
  total = sum(c)
  last <- total
  return total
}
graph more(x: f32[1000]) -> bool[] {
  most = max(x)
  large = greater(most, 0.3)
  return large
}
graph quarter(x: f32[1000]) -> f32[1000] {
  u = mul(x, 0.25)
  v = add(u, u)
  return v
}
"""


def test_what_callers_hold_counts_and_is_listed(tmp_path):
    path = tmp_path / "runs.db"
    record(path, opstep.loads(HELD), {"x": np.linspace(0, 1, 1000, dtype="f4")})
    ((site, live),) = ask(path, "select site, live_bytes from memory_peak where run = 1")
    assert (site, live) == ("quarter/u", 3 * 4000)  # y is where a was
    held = "select kind, name, nbytes from live_at_peak where run = 1 and nbytes > 4"
    assert sorted(ask(path, held)) == [
        ("input", "x", 4000),
        ("param", "w", 4000),
        *(("temporary", name, 4000) for name in ("main/a", "main/b", "quarter/u")),
    ]
    assert ("state", "last", 4) in ask(path, held.replace("> 4", "= 4"))


def test_quantiles_are_functions(runs):
    with opstep.Workspace(runs) as workspace:
        ask_for = "select median(value), p99(value), quantile(value, 0.25) from json_each(?)"
        for values in ([3.0, 1, 2], [5], list(range(101)), [1, None, 2]):
            there = [v for v in values if v is not None]
            sql = ask_for.replace("?", f"'{json.dumps(values)}'")
            (found,) = workspace.sql(sql).rows
            wanted = [float(np.quantile(there, q)) for q in (0.5, 0.99, 0.25)]
            assert list(found) == pytest.approx(wanted)


def test_slowest_ops_add_up(runs):
    rows = ask(
        runs,
        "select s.op, s.executions, s.total_ns, count(*), sum(e.end_ns - e.start_ns) "
        "from slowest_ops as s join executions as e using (run, op) where run = 1 group by s.op",
    )
    assert rows
    for _, executions, total, counted, added in rows:
        assert (executions, total) == (counted, added) and counted == 3


def test_compared_runs_differ_where_the_text_does(runs):
    rows = ask(
        runs,
        "select site, same, mean, other_mean from run_compare where run = 1 and other = 2 "
        "and op >= 0 order by op",
    )
    same = {site.removeprefix("main/"): same for site, same, *_ in rows}
    assert same["y"] == same["r"] == same["d"] == 1
    assert same["loss"] == 0
    means = {site: (a, b) for site, _, a, b in rows}
    assert means["main/d"][0] == means["main/d"][1] != None  # noqa: E711
    swapped = ask(runs, "select count(*) from run_compare where run = 2 and other = 1 and op >= 0")
    assert swapped == [(len(rows),)]


def test_views_are_made_anew_by_sqlite_alone(runs):
    """Nothing in them needs a function that only opstep has."""
    connection = sqlite3.connect(runs)
    for view in VIEWS:
        connection.execute(f"select * from {view.name}").fetchall()
    connection.close()
