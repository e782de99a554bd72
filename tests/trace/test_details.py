"""Quantiles, histograms by sign and figures of channels: recorded, and held against NumPy."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401 - NumPy learns bf16
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from workspaces import HALVING, record, sound, train_inputs, train_program

import opstep
from opstep.cli.main import main
from opstep.runtime.ir.errors import InputError
from opstep.trace.selection import KINDS
from opstep.trace.workspace import datasette as viewer
from opstep.trace.workspace import schema, sink, store
from opstep.trace.workspace.views import VIEWS

ALL = "quantiles,signed,channels"
TABLES = ("quantiles", "signed", "channels")
DTYPES = ("f64", "f32", "f16", "bf16", "i64", "i32", "i16", "i8", "u8", "bool")
CASTS = "\n".join(
    [
        "graph main(x: f64[A, B, C], n: i64[A, B, C]) -> "
        + ", ".join(f"{t}[A, B, C]" for t in DTYPES)
        + " {",
        *(f"  {t}s = cast({'x' if t[0] in 'fb' else 'n'}, dtype={t})" for t in DTYPES),
        "  return " + ", ".join(f"{t}s" for t in DTYPES),
        "}",
    ]
)
SAME = """\
graph main(x: f32[N]) -> f32[N] {
  y = relu(x)
  z = neg(x)
  return z
}
"""
WAYS = [
    {"mode": "async", "streams": 1, "threads": 1},
    {"mode": "async", "streams": 3},
    {"mode": "debug"},
]


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "runs.db"


def taken(path: Path, text: str, inputs: dict[str, Any], also: str = ALL, **options: Any):
    """Records a run; (its outputs, the run)."""
    recorded = {k: options.pop(k) for k in ("stats", "stats_every") if k in options}
    with opstep.Recording(workspace=path, stats_also=also, **recorded) as recording:
        outputs = opstep.loads(text).run("main", inputs, recording=recording, **options)
    return outputs, opstep.Workspace(path).run(recording.runs[0].key)


def values(shape: tuple[int, ...], odd: bool = True) -> np.ndarray:
    """Of both signs and many sizes, with zeros, NaNs and infinities among them."""
    rng = np.random.default_rng(sum(shape))
    made = rng.standard_normal(shape) * np.exp2(rng.integers(-30, 12, shape))
    specials = [0.0, -0.0, *([np.nan, np.inf, -np.inf] if odd else [])]
    places = rng.random(shape) < 0.25
    made[places] = np.array(specials)[rng.integers(0, len(specials), places.sum())]
    return made


def figures(rows: list) -> list[tuple]:
    """Step, tensor and what is known of it; streams end in any order."""
    return sorted((row.step, row.value, *row[7:]) for row in rows)


def finite(array: np.ndarray) -> np.ndarray:
    """Those elements, in f64."""
    numbers = np.asarray(array, np.float64).ravel()
    return numbers[np.isfinite(numbers)]


def histogram(magnitudes: np.ndarray) -> list[int]:
    exponents = np.clip(np.frexp(magnitudes)[1] - 1, -40, 23)
    return np.bincount(exponents + 40, minlength=64).tolist()


def check(run: Any, name: str, array: np.ndarray, axis: int | None = 1) -> None:
    """Holds all that is known of the tensor in step 0 against NumPy."""
    kept = finite(array)
    (q,) = run.quantiles(value=name, step=0)
    if not kept.size:
        assert q[7:] == (None,) * 6
    else:
        size = np.abs(kept)
        wanted = [np.quantile(a, p) for a in (kept, size) for p in (0.01, 0.5, 0.99)]
        np.testing.assert_allclose(q[7:], wanted, rtol=1e-9, atol=1e-12 * size.max())
    (s,) = run.signed(value=name, step=0)
    assert list(s.negative) == histogram(-kept[kept < 0])
    assert list(s.positive) == histogram(kept[kept > 0])
    rows = [] if axis is None else np.moveaxis(array, axis, 0)
    found = run.channels(value=name, step=0)
    assert [c.channel for c in found] == list(range(len(rows)))
    for c, row in zip(found, rows, strict=True):
        own = finite(row)
        ends = (own.min(), own.max()) if own.size else (None, None)
        assert (c.finite, c.min, c.max) == (own.size, *ends)
        assert c.zero == (own == 0).sum()


# --- figures --------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_of_every_dtype(path, way):
    shape = (3, 5, 7)
    x = values(shape)
    n = np.random.default_rng(0).integers(-130, 130, shape)
    outputs, run = taken(path, CASTS, {"x": x, "n": n}, **way)
    for t in DTYPES:
        check(run, f"{t}s", outputs[f"{t}s"])
    check_initial = run.quantiles(value="x", step=-1)
    assert [q.name for q in check_initial] == ["input"]


@pytest.mark.parametrize("axis", [0, 2, -1, -2])
def test_channels_along_another_axis(path, axis):
    x = values((4, 3, 6))
    outputs, run = taken(
        path, CASTS, {"x": x, "n": np.ones((4, 3, 6), int)}, f"channels={axis}, quantiles,signed"
    )
    check(run, "f32s", outputs["f32s"], axis)


def test_the_same_words_whatever_the_threads(path):
    """Of a tensor that several lanes look at."""
    x = values((400_000,)).astype(np.float32)
    rows = []
    for way in WAYS:
        _, run = taken(path, SAME, {"x": x}, **way)
        rows.append([figures(run.quantiles()), figures(run.signed())])
    assert rows[0] == rows[1] == rows[2]
    check(run, "z", -x, None)


@pytest.mark.parametrize("shape", [(0, 2, 3), (2, 0, 3), (1, 1, 1)])
def test_of_few_elements(path, shape):
    x, n = np.full(shape, -2.5), np.full(shape, 3)
    outputs, run = taken(path, CASTS, {"x": x, "n": n})
    for name, array in outputs.items():
        check(run, name, array)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_of_nothing_finite(path, value):
    outputs, run = taken(
        path, CASTS, {"x": np.full((2, 3, 2), value), "n": np.zeros((2, 3, 2), int)}
    )
    for name in ("f64s", "f32s", "f16s", "bf16s"):
        check(run, name, outputs[name])


def test_integers_are_kept_whole(path):
    """Those that f64 does not hold, too; the least of them has no magnitude that i64 holds."""
    text = "graph main(n: i64[A, B]) -> i64[A, B] {\n  m = add(n, 0)\n  return m\n}"
    n = np.array([[2**62 + 1, 2**63 - 1], [-(2**63), -(2**63) + 1]])
    _, run = taken(path, text, {"n": n})
    assert [(c.min, c.max) for c in run.channels(value="m", step=0)] == [
        (-(2**63), 2**62 + 1), (-(2**63) + 1, 2**63 - 1)
    ]  # fmt: skip
    (q,) = run.quantiles(value="m", step=0)
    assert (q.p1, q.abs_p50, q.abs_p99) == (-(2.0**63), 2.0**63, 2.0**63)
    (s,) = run.signed(value="m", step=0)
    assert (s.negative[63], s.positive[63]) == (2, 2)


def test_tensors_without_channels(path):
    text = "graph main(x: f32[N, M]) -> f32[N, M] {\n  y = neg(x)\n  s = sum(x)\n  return y\n}"
    _, run = taken(path, text, {"x": np.ones((2, 4097), np.float32)})
    assert run.channels() == []  # too many, or none
    assert len(run.quantiles(step=0)) == 3


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=40))
def test_of_any_bits(tmp_path_factory, bits):
    x = np.array(bits, np.uint32).view(np.float32)
    _, run = taken(tmp_path_factory.mktemp("any") / "runs.db", SAME, {"x": x})
    with np.errstate(invalid="ignore"):
        check(run, "z", -x, None)


# --- what is taken when ---------------------------------------------------------------------------


def rows_of(path: Path) -> dict[str, int]:
    connection = sqlite3.connect(path)
    found = {t: connection.execute(f"select count(*) from {t}").fetchone()[0] for t in TABLES}
    connection.close()
    return found


def test_nothing_where_nobody_asks(path):
    record(path)
    assert set(rows_of(path).values()) == {0}
    assert opstep.Workspace(path).run().also is None


@pytest.mark.parametrize("kind", TABLES)
def test_one_kind_alone(path, kind):
    taken(path, CASTS, {"x": values((2, 3, 4)), "n": np.ones((2, 3, 4), int)}, kind)
    assert [t for t, n in rows_of(path).items() if n] == [kind]


def test_of_chosen_tensors_and_steps(path):
    x = np.ones(5, np.float32)
    _, run = taken(path, SAME, {"x": x}, stats="relu:*", stats_every=2, steps=5)
    assert [(q.value, q.step) for q in run.quantiles()] == [("y", 0), ("y", 2), ("y", 4)]
    assert run.also == ALL


def test_of_each_turn_of_a_loop(path):
    _, run = taken(path, HALVING, {"x": np.array([5.0, 0.5], np.float32)})
    body = run.quantiles(op="mul")
    assert [q.p99 for q in body] == [s.p99 for s in body] and len(body) == 3
    assert [round(q.p50, 3) for q in body] == [1.375, 0.688, 0.344]


def test_a_repeat_takes_them_again(path):
    _, run = taken(path, SAME, {"x": np.arange(5, dtype=np.float32)}, steps=2)
    before = figures(run.quantiles())
    assert main(["ws", str(path), "rerun", "1", "--record"]) == 0
    assert main(["ws", str(path), "compare", "1", "2"]) == 0
    with opstep.Workspace(path) as ws:
        assert ws.run().also == ALL
        assert figures(ws.run().quantiles()) == before
    assert main(["ws", str(path), "prune", "--run", "1", "--run", "2", "--yes"]) == 0
    assert set(rows_of(path).values()) == {0}


@pytest.mark.parametrize("spill", [0, sink.SPILL])
def test_an_interrupted_run_keeps_whole_steps(path, monkeypatch, spill):
    """Also where a step waits in temporary tables for its end."""
    monkeypatch.setattr(sink, "SPILL", spill)
    program, x = opstep.loads(HALVING), {"x": np.full(7, 3.0, np.float32)}
    left = iter([None, None])

    def on_step():
        if next(left, KeyboardInterrupt):
            raise KeyboardInterrupt

    recording = opstep.Recording(workspace=path, stats_also=ALL)
    with recording, pytest.raises(KeyboardInterrupt):
        program.run("main", x, steps=50, recording=recording, on_step=on_step)
    sound(path)
    with opstep.Workspace(path) as ws:
        assert ws.run().steps == 3
        counts = ws.sql("select step, count(*) from quantiles group by step").rows
        same = ws.sql("select step, count(*) from stats group by step").rows
    assert counts == same and [step for step, _ in counts] == [-1, 0, 1, 2]


def test_a_file_of_before_is_brought_up_to_date(path):
    record(path)
    connection = sqlite3.connect(path)
    for view in VIEWS:
        connection.execute(f"drop view {view.name}")
    for table in TABLES:
        connection.execute(f"drop table {table}")
    for table, columns in (
        ("runs", ("also", "parent", "parent_step")),
        ("checkpoints", ("format", "epoch", "batch", "rows", "seed", "metric", "score")),
        ("ops", ("fused_into",)),
    ):
        for column in columns:
            connection.execute(f"alter table {table} drop column {column}")
    connection.execute("pragma user_version = 3")
    connection.commit()
    connection.close()
    with opstep.Workspace(path) as ws:
        assert ws.run().also is None and ws.run().quantiles() == []
        taken(path, SAME, {"x": np.ones(3, np.float32)})
        assert len(ws.run().quantiles(step=0)) == 3
    assert schema.VERSION >= 4
    store.open_reading(path).close()


# --- how it is asked for --------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["quantile", "signed=1", "channels=x", "channels=", "all"])
def test_what_is_not_known_is_refused(path, text):
    with pytest.raises(InputError, match="stats_also"):
        opstep.Recording(workspace=path, stats_also=text)
    assert not path.exists()


def test_on_the_command_line(path, tmp_path, capsys):
    program = tmp_path / "same.opg"
    program.write_text(SAME)
    np.save(tmp_path / "x.npy", np.arange(101, dtype=np.float32))
    given = ["run", str(program), "-i", f"x={tmp_path / 'x.npy'}"]
    assert main([*given, "--stats-also", "quantiles"]) == 2
    assert "--stats-also needs a workspace" in capsys.readouterr().err
    assert main([*given, "-w", str(path), "--stats-also", "quantiles"]) == 0
    with opstep.Workspace(path) as ws:
        (row,) = ws.sql(
            "select r.name, q.p1, q.p50, q.p99, q.abs_p99 from quantiles q "
            "join results r using (run, op, result) where r.name = 'z' and q.step = 0"
        ).rows
    assert row == ("z", -99.0, -50.0, -1.0, 99.0)


def test_quantiles_are_drawn_by_step(path):
    x = values((6, 4)).astype(np.float32)
    text = "graph main(x: f32[N, C]) -> f32[N, C] {\n  y = relu(x)\n  return y\n}"
    taken(path, text, {"x": x}, steps=3)
    application = viewer.application(path)
    page = "/data/quantiles{}?run=1&op=0"
    assert "/data/quantiles.svg" in asyncio.run(application.client.get(page.format(""))).text
    drawn = asyncio.run(application.client.get(page.format(".svg"))).text
    assert all(title in drawn for title in (">p1<", ">p50<", ">p99<"))


def test_training_is_not_changed(path):
    plain = train_program().run("main", train_inputs(), steps=3)
    with opstep.Recording(workspace=path, stats_also=ALL) as recording:
        program = train_program()
        outputs = program.run("main", train_inputs(), steps=3, recording=recording)
    assert all(outputs[n].tobytes() == a.tobytes() for n, a in plain.items())


def test_each_kind_has_a_table():
    assert tuple(KINDS) == schema.DETAILS
