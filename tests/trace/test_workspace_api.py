"""`opstep.Workspace`: runs and tensors by name, statistics, SQL, frames."""

from __future__ import annotations

import secrets
import sqlite3
import sys

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of
from workspaces import HALVING, ROOTS, record, train_inputs, train_program

import opstep
from opstep.runtime.ir.errors import InputError


@pytest.fixture
def path(tmp_path):
    return tmp_path / "runs.db"


# --- runs -----------------------------------------------------------------------------------------


def test_a_run_tells_how_it_ran(path):
    program = train_program()
    key = record(path, program, steps=3, seed=7, streams=2, fill="nan", stats_every=2)
    with opstep.Workspace(path) as ws:
        (run,) = ws.runs
        assert (run.id, run.key, run.status, run.error) == (1, key, "done", None)
        assert (run.graph, run.file, run.steps, run.every) == ("main", "train.opg", 3, 2)
        assert run.switches == {
            "device": "cpu", "streams": 2, "alloc": "reuse", "fill": "nan", "sync": "none",
            "threads": None, "seed": 7,
        }  # fmt: skip
        assert opstep.loads(run.program).graphs.keys() == program.graphs.keys()
        assert run.seconds > 0
        assert {s.step for s in run.stats()} == {-1, 0, 2}
        assert {s.name for s in run.stats(step=-1)} == {"input", "param", "state"}


def test_a_reader_leaves_no_files_behind_but_those_in_use(path):
    record(path)
    with opstep.Workspace(path) as one:
        with opstep.Workspace(path) as other:
            assert other.runs
        assert one.runs
    assert [p.name for p in path.parent.iterdir()] == ["runs.db"]


def test_runs_by_id_key_beginning_and_last(path, monkeypatch):
    keys = iter(["3f2a0000", "3f2b0000", "00000002"])
    monkeypatch.setattr(secrets, "token_hex", lambda n: next(keys))
    for _ in range(3):
        record(path)
    with opstep.Workspace(path) as ws:
        found = {
            r: ws.run(r).key for r in ("last", 1, "1", "3f2b", "3F2A", "0000", "00000002", "2")
        }
        assert found == {
            "last": "00000002", 1: "3f2a0000", "1": "3f2a0000", "3f2b": "3f2b0000",
            "3F2A": "3f2a0000", "0000": "00000002", "00000002": "00000002", "2": "3f2b0000",
        }  # fmt: skip
        with pytest.raises(InputError, match=r"2 runs begin with 3f: 3f2b0000 \(run 2\), 3f2a0000"):
            ws.run("3f")
        with pytest.raises(InputError, match=r"no run 3f2c0000(.|\n)*did you mean 3f2"):
            ws.run("3f2c0000")
        for nothing in (99, -1, "", "%", "*", "9" * 40):
            with pytest.raises(InputError, match="there is no run"):
                ws.run(nothing)


def test_an_empty_workspace_has_no_last_run(path):
    opstep.Workspace.create(path)
    with opstep.Workspace(path) as ws:
        assert ws.runs == [] and ws.names() == []
        with pytest.raises(InputError, match="no run in this workspace"):
            ws.run()


def test_ops_executions_and_statistics(path):
    inputs = train_inputs(rows=5)
    program = train_program()
    record(path, program, inputs, steps=2)
    with opstep.Workspace(path) as ws:
        run = ws.run()
        (relu,) = [op for op in run.ops if op.name == "relu"]
        assert (relu.site, relu.line, relu.results) == ("main/r", 7, ["r"])
        assert relu.statement == "r = relu(y)"
        assert relu.operands == [("y", "f32[5, 3]")]
        executions = run.executions("relu")
        assert [e.step for e in executions] == [0, 1]
        assert executions == run.executions(relu.op) == run.executions("main/r")
        assert all(0 <= e.seconds < 10 for e in executions)
        bias = np.array([0.25, -0.5, 1.0], np.float32)
        for step in range(2):
            r = np.maximum(inputs["x"] @ program.params["w"].T + bias, 0)
            (stat,) = run.stats("relu", step=step)
            assert (stat.value, stat.site, stat.line) == ("r", "main/r", 7)
            s = stat.statistics
            assert (s.count, s.nan, s.zero) == (15, 0, (r == 0).sum())
            assert sum(s.histogram) == (r != 0).sum()
            assert np.allclose((s.max, s.mean, s.std), (r.max(), r.mean(), r.std()), rtol=1e-5)
            bias = bias * np.float32(0.5)
        assert run.stats(value="r") == run.stats("main/r") == run.stats("rel*")
        assert run.stats("relu", value="y") == []


def test_turns_of_a_loop(path):
    record(path, opstep.loads(HALVING), {"x": np.array([9.0, 1.5], np.float32)})
    with opstep.Workspace(path) as ws:
        stats = ws.run().stats("mul")
        assert [s.statistics.max for s in stats] == [4.5, 2.25, 1.125, 0.5625]
        assert [e.turn for e in ws.run().executions("mul")] == [0, 1, 2, 3]


def test_metrics(path):
    program, inputs = train_program(), train_inputs()
    losses = []
    with opstep.Recording(workspace=path) as recording:
        for _ in range(3):
            losses.append(float(program.run("main", inputs, recording=recording)["loss"]))
    with opstep.Workspace(path) as ws:
        assert ws.run().metric("loss") == losses
        assert len(set(losses)) == 3
        assert {m.name for m in ws.run().metrics} == {"loss", "seconds"}


def test_the_first_bad_tensor(path):
    record(path, opstep.loads(ROOTS), {"x": np.array([3.0, 0.5, 2.0], np.float32)})
    record(path, opstep.loads(ROOTS), {"x": np.array([3.0, 1.5, 2.0], np.float32)})
    with opstep.Workspace(path) as ws:
        bad, verdict = ws.run(1).first_bad()
        assert (bad.name, bad.value, bad.line, bad.statistics.nan) == ("sqrt", "root", 3, 1)
        assert verdict == "origin"
        assert ws.run(2).first_bad() is None
        assert [f.value for f in ws.run(1).findings] == ["root"]
        assert ws.run(2).findings == []
        assert ws.run(1).metric("total") == [None]


# --- tensors --------------------------------------------------------------------------------------


def test_tensors_of_runs(path):
    program, inputs = train_program(), train_inputs()
    key = record(path, program, inputs, steps=3)
    with opstep.Workspace(path) as ws:
        assert set(ws) == {"x", "target", "bias", "count", "loss", "r"}
        assert (ws["x"] == inputs["x"]).all()
        assert (ws["bias"] == program.params["bias"]).all()
        assert ws["count"] == 3 and ws["count"].dtype == np.int32
        before = np.array([0.25, -0.5, 1.0], np.float32)
        assert (ws[f"bias@{key}:-1"] == before).all()
        assert (ws["bias@last:-1"] == before).all()
        assert (ws["bias@1:2"] == ws["bias"]).all()
        assert ws.tensor("bias").reference == f"bias@{key}:2"
        kinds = {c.kind: {t.name for t in c.tensors} for c in ws.run().checkpoints}
        assert "bias" in kinds["start"] and {"bias", "count"} <= kinds["end"]


def test_the_program_of_a_run(path):
    program = train_program()
    program.params["count"] = 5
    before = dict(program.params)
    record(path, program, steps=3, seed=4)
    program.reseed(4)
    with opstep.Workspace(path) as ws:
        found = ws.program("last").params
        assert found["count"] == 5 and (found["bias"] == before["bias"]).all()
        assert (found["w"] == program.params["w"]).all()


def test_a_name_that_several_runs_have(path):
    keys = [record(path, inputs=train_inputs(seed=s)) for s in (0, 1, 1)]
    with opstep.Workspace(path) as ws:
        with pytest.raises(InputError) as caught:
            ws["x"]
        text = str(caught.value)
        assert "x is ambiguous: 3 runs have one, and they differ" in text
        assert all(f"x@{key}:-1 (input, f32[4, 2])" in text for key in keys)
        assert (ws["x@1"] == train_inputs(seed=0)["x"]).all()
        assert (ws[f"x@{keys[2][:7]}"] == train_inputs(seed=1)["x"]).all()
        assert ws["count"] == 1, "all runs agree"
        ws.save("x", np.zeros(3))
        assert (ws["x"] == np.zeros(3)).all(), "what was saved by hand comes first"
        assert ws["x@1"].shape == (4, 2)


@pytest.mark.parametrize(
    "reference, message",
    [
        ("biass", "there is no tensor biass\nhint: did you mean bias?"),
        ("w", "w was not stored: run "),
        ("zzz", "there is no tensor zzz\nhint: there are: bias, count"),
        ("x@last:5", "run last has no x at step 5; there is x@"),
        ("loss@77", "there is no run 77"),
        ("", "'' does not name a tensor"),
        ("x@", "'x@' does not name a tensor"),
        ("x@last:", "does not name a tensor"),
        ("x@last:one", "write NAME, NAME@RUN or NAME@RUN:STEP"),
        ("\x1b[31m", "there is no tensor \ufffd[31m"),
    ],
)
def test_tensors_that_are_not_there(path, reference, message):
    record(path)
    with opstep.Workspace(path) as ws, pytest.raises(InputError) as caught:
        ws[reference]
    assert message in str(caught.value)


DTYPES = ["f8", "f4", "f2", "i8", "i4", "i2", "i1", "u1", "?"]
ANY = st.sampled_from(DTYPES).flatmap(
    lambda dtype: arrays_of.arrays(dtype, arrays_of.array_shapes(min_dims=0, min_side=0))
)


@settings(max_examples=60, deadline=None)
@given(ANY, st.booleans())
def test_what_is_saved_is_loaded_bit_for_bit(tmp_path_factory, array, fortran):
    path = tmp_path_factory.mktemp("ws") / "w.db"
    opstep.Workspace.create(path)
    with opstep.Workspace(path) as ws:
        ws["a"] = np.asarray(array, order="F" if fortran else "C")
        found = ws["a"]
        assert found.dtype == array.dtype and found.shape == array.shape
        assert found.tobytes() == array.tobytes()
        found[...] = 0  # it is the caller's own


def test_other_ways_to_give_an_array(path):
    opstep.Workspace.create(path)
    with opstep.Workspace(path) as ws:
        half = np.array([1.5, -2], ml_dtypes.bfloat16)
        ws["half"] = half
        ws["big"] = np.arange(4, dtype=">i4")[::2]
        ws["number"] = 2.5
        ws["list"] = [[1, 2], [3, 4]]
        assert ws["half"].dtype == half.dtype and (ws["half"] == half).all()
        assert ws["big"].tolist() == [0, 2] and ws["big"].dtype == np.dtype("<i4")
        assert ws["number"] == 2.5
        assert ws["list"].tolist() == [[1, 2], [3, 4]]
        assert ws.names() == sorted(["half", "big", "number", "list"])


def test_saving_replaces_what_was_saved_before(path):
    opstep.Workspace.create(path)
    with opstep.Workspace(path) as ws:
        ws.save("a", np.arange(1000.0))
        ws.save("a", np.ones(3))
        assert len(ws.tensors("a")) == 1
        assert (ws["a"] == 1).all()
        assert ws.sql("select count(*), sum(length(data)) from blobs").rows == [(1, 24)]


@pytest.mark.parametrize(
    "name, value, message",
    [
        ("", 1.0, "is not a name"),
        ("a@b", 1.0, "have a meaning of their own"),
        ("a=b", 1.0, "have a meaning of their own"),
        (" a", 1.0, "is not a name"),
        ("a\nb", 1.0, "is not a name"),
        ("x" * 300, 1.0, "is not a name"),
        ("a", np.array([1j]), "cannot be kept"),
        ("a", np.array(["text"]), "cannot be kept"),
        ("a", np.array([object()]), "cannot be kept"),
        ("a", [[1], [1, 2]], "cannot be kept"),
        ("a", np.zeros(2, "u8"), "cannot be kept"),
    ],
)
def test_what_cannot_be_saved(path, name, value, message):
    opstep.Workspace.create(path)
    with opstep.Workspace(path) as ws:
        with pytest.raises(InputError, match=message):
            ws.save(name, value)
        assert ws.names() == []


# --- SQL and frames -------------------------------------------------------------------------------


def test_sql(path):
    key = record(path, steps=2)
    with opstep.Workspace(path) as ws:
        answer = ws.sql("select key, steps from runs where id = ?", [1])
        assert answer == (["key", "steps"], [(key, 2)])
        assert answer.dicts() == [{"key": key, "steps": 2}]
        named = ws.sql("select :a + 1 as b, id, id from runs", {"a": 1})
        assert named.columns == ["b", "id", "id:1"]
        assert ws.sql("pragma table_info(runs)").rows[0][1] == "id"
        assert ws.sql("select name from pragma_table_info('runs') limit 1").rows == [("id",)]
        assert ws.sql("explain query plan select * from runs").rows


@pytest.mark.parametrize(
    "text",
    [
        "delete from runs",
        "update runs set key = 'x'",
        "insert into metrics values (1, 0, 'a', 1)",
        "with a as (select 1) insert into metrics select 1, 0, 'a', 1",
        "create table t (a)",
        "create temp table t (a)",
        "create temp view v as select 1",
        "create virtual table t using fts5(a)",
        "drop table stats",
        "drop view first_bad",
        "alter table runs add column a",
        "attach 'other.db' as other",
        "vacuum",
        "vacuum into 'copy.db'",
        "reindex",
        "analyze",
        "begin",
        "savepoint a",
        "pragma journal_mode = delete",
        "pragma user_version = 7",
        "pragma query_only = 0",
        "pragma writable_schema = 1",
        "pragma wal_checkpoint(truncate)",
        "pragma optimize",
        "select load_extension('x.so')",
        "select 1; delete from runs",
    ],
)
def test_sql_only_reads(path, tmp_path, text):
    record(path)
    before = sqlite3.connect(path).execute("select * from runs").fetchall()
    with opstep.Workspace(path) as ws, pytest.raises(InputError):
        ws.sql(text)
    assert sqlite3.connect(path).execute("select * from runs").fetchall() == before
    assert {f.name.partition("-")[0] for f in tmp_path.iterdir()} == {"runs.db"}


@pytest.mark.parametrize(
    "text, where, message",
    [
        ("select * form runs", "sql:1:10", 'near "form": syntax error'),
        ("select id from runs\nwhere id = = 1", "sql:2:12", 'near "="'),
        ("select steps, stepps from runs", "sql:1:15", "did you mean steps or"),
        ("select a, b, from, c, d", "sql:1:14", 'near "from"'),
        ("select 'x,,y', 1,, 2, 3, 4", "sql:1:18", 'near ","'),
        ("select * from stat", "sql:1:15", "did you mean stats?"),
        ("select 'runs', foo(1) from runs", "sql:1:16", "no such function: foo"),
        ("select * from runs where", "sql:1:25", "incomplete input"),
        ("select r.step from runs r, metrics m, stats s where step = 1", "sql:1:53", "ambiguous"),
        ("select # from runs", "sql:1:8", "unrecognized token"),
    ],
)
def test_wrong_sql_points(path, text, where, message):
    record(path)
    with opstep.Workspace(path) as ws, pytest.raises(InputError) as caught:
        ws.sql(text.replace("r.step", "r.steps"))
    shift = 1 if "r.step " in text else 0
    line, column = where.split(":")[1:]
    assert str(caught.value).startswith(f"sql:{line}:{int(column) + shift}: error:")
    assert message in str(caught.value)


@pytest.mark.parametrize("text", ["", "  ", "-- nothing", "/* nothing */ ;", "select '\ud800'"])
def test_sql_that_says_nothing(path, text):
    opstep.Workspace.create(path)
    with opstep.Workspace(path) as ws, pytest.raises(InputError):
        ws.sql(text)


@pytest.mark.parametrize("parameters", [(), (1, 2), {"b": 1}, ([1],)])
def test_wrong_parameters(path, parameters):
    opstep.Workspace.create(path)
    with opstep.Workspace(path) as ws, pytest.raises(InputError):
        ws.sql("select :a", parameters)


ENDLESS = "with recursive n(x) as (select 1 union all select x + 1 from n) select {} from n"


@pytest.mark.parametrize("what", ["count(*)", "x"])
def test_endless_sql_is_ended(path, what):
    opstep.Workspace.create(path)
    with opstep.Workspace(path) as ws:
        with pytest.raises(InputError, match=r"took longer than 0\.2 s"):
            ws.sql(ENDLESS.format(what), timeout=0.2)
        assert ws.sql("select 1").rows == [(1,)]


def test_frames(path):
    pandas = pytest.importorskip("pandas")
    record(path, steps=2)
    with opstep.Workspace(path) as ws:
        frame = ws.frame("metrics", "name = ?", ["loss"])
        assert isinstance(frame, pandas.DataFrame)
        assert frame["value"].tolist() == ws.run().metric("loss")
        assert len(ws.frame("stats", "run = 1 and step = 0")) == len(ws.run().stats(step=0))
        with pytest.raises(InputError, match="did you mean metrics"):
            ws.frame("metric")
        with pytest.raises(InputError, match="no such column: nme"):
            ws.frame("metrics", "nme = 1")


def test_frames_without_pandas(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    opstep.Workspace.create(path)
    with opstep.Workspace(path) as ws, pytest.raises(InputError, match="pip install pandas"):
        ws.frame("runs")
