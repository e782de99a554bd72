"""Timelines, read by Perfetto's own engine and compared with what the sink was told."""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from branching import SIZE, branching
from timelines import Seen, expected_ops, recording, track

import opstep
from opstep.runtime.ir.diagnostics import OpstepError
from opstep.runtime.plan.plan import Alloc, Free
from opstep.trace.viewer.engine import Engine

LOOP = """
graph main(x: f32[N]) -> f32[N], f32[] {
  doubled = mul(x, 2.0)
  y = while(doubled, test=large, body=halve)
  total = sum(y)
  return y, total
}

graph large(x: f32[N]) -> bool[] {
  top = max(x)
  more = greater(top, 1.0)
  return more
}

graph halve(x: f32[N]) -> f32[N] {
  positive = any(x)
  less = cond(positive, x, then=half, else=same)
  return less
}

graph half(x: f32[N]) -> f32[N] {
  less = mul(x, 0.5)
  return less
}

graph same(x: f32[N]) -> f32[N] {
  return x
}
"""


def given(size: int = SIZE) -> dict:
    return {"x": np.random.default_rng(0).standard_normal(size).astype(np.float32)}


WAYS = [
    (branching(1, 6), {"streams": 1, "steps": 5}),
    (branching(4, 6), {"streams": 4, "steps": 3}),
    (branching(3, 4), {"streams": 2, "alloc": "fresh", "steps": 3}),
    (branching(2, 3), {"mode": "debug", "steps": 2}),
    (LOOP, {"streams": 1, "steps": 2}),
    (LOOP, {"streams": 4}),
    (LOOP, {"mode": "debug"}),
]
IDS = ["one", "four", "fresh", "debug", "loop", "loop on four", "loop in debug mode"]


@pytest.fixture(scope="module", params=WAYS, ids=IDS)
def both(request, tmp_path_factory):
    """What the sink was told of a run, and what the engine sees."""
    text, options = request.param
    path = tmp_path_factory.mktemp("timeline") / "t.pftrace"
    with pytest.MonkeyPatch.context() as monkeypatch, recording(monkeypatch, path) as (made, told):
        opstep.loads(text).run("main", given(), recording=made, **options)
    return told, Seen(path)


def in_order(ops) -> list:
    return sorted(ops, key=lambda op: (op[0], op[2]))


def test_every_op_with_its_time_and_arguments(both):
    told, seen = both
    found = in_order((*s.brief, s.args) for s in seen.of("op"))
    expected = in_order(expected_ops(told))
    assert [op[:4] for op in found] == [op[:4] for op in expected] != []
    for (*_, args), (*_, wanted) in zip(found, expected, strict=True):
        assert args.keys() == wanted.keys()
        for key, value in wanted.items():
            is_rate = isinstance(value, float)
            assert args[key] == (pytest.approx(value, rel=1e-12) if is_rate else value)


def test_arguments_of_an_op_are_its_statement_spelled_out(tmp_path):
    source = tmp_path / "small.opg"
    source.write_text(
        "param w: f32[2, 3] = zeros()\n"
        "graph inner(x: f32[N, 3]) -> f32[N, 2] {\n"
        "  y = linear(x, w)\n"
        "  s = softmax(y, axis=1)\n"
        "  return s\n"
        "}\n"
        "graph main(x: f32[4, 3]) -> f32[4, 2] {\n"
        "  out = inner(x)\n"
        "  return out\n"
        "}\n"
    )
    with opstep.Recording(trace=tmp_path / "t.pftrace") as made:
        opstep.load(source).run("main", {"x": np.ones((4, 3), np.float32)}, recording=made)
    seen = Seen(tmp_path / "t.pftrace")
    first, second = seen.of("op")
    key = made.runs[0].key
    rate = first.args.pop("GFLOP/s")
    assert rate == pytest.approx(first.args["flops"] / first.dur)
    assert first.name == "inner:out/y = linear"
    assert first.args == {
        "run": key, "step": 0, "op": 0, "name": "linear", "site": "main/inner:out/y",
        "frame": "main/inner:out", "graph": "inner", "file": str(source), "line": 3,
        "statement": "y = linear(x, w)", "operands": '[["x", "f32[4, 3]"], ["w", "f32[2, 3]"]]',
        "results": "y: f32[4, 2]", "bytes": 4 * (12 + 6 + 8), "flops": 2 * 4 * 3 * 2,
        "attrs": '{"transpose_w": false}',
    }  # fmt: skip
    assert second.args["attrs"] == '{"axis": 1}'
    assert second.track == (f"opstep run 1: main ({key})", "CPU", "stream 0")


CALLS = """
graph inner(x: f32[N]) -> f32[N] {
  a = exp(x)
  b = relu(a)
  return b
}
graph outer(x: f32[N]) -> f32[N] {
  y = inner(x)
  z = inner(y)
  w = neg(z)
  return w
}
graph main(x: f32[N]) -> f32[N] {
  p = outer(x)
  q = abs(p)
  return q
}
"""


@pytest.mark.parametrize("workspace", [False, True])
def test_calls_are_slices_around_their_ops(tmp_path, workspace):
    files = {"workspace": tmp_path / "w.db"} if workspace else {}
    with opstep.Recording(trace=tmp_path / "t.pftrace", **files) as made:
        opstep.loads(CALLS).run("main", given(), recording=made, streams=1, steps=3)
    seen = Seen(tmp_path / "t.pftrace")

    def above(s) -> list[str]:
        found = []
        while s.parent is not None:
            s = seen.slices[s.parent]
            found.append(s.name)
        return found[::-1]

    ops = {s.name: above(s) for s in seen.of("op")}
    assert ops == {
        "outer:p/inner:y/a = exp": ["p = outer", "outer:p/y = inner"],
        "outer:p/inner:y/b = relu": ["p = outer", "outer:p/y = inner"],
        "outer:p/inner:z/a = exp": ["p = outer", "outer:p/z = inner"],
        "outer:p/inner:z/b = relu": ["p = outer", "outer:p/z = inner"],
        "outer:p/w = neg": ["p = outer"],
        "q = abs": [],
    }
    calls = ["p = outer", "outer:p/y = inner", "outer:p/z = inner"]
    assert Counter(s.name for s in seen.of("call")) == dict.fromkeys(calls, 3)
    taken = [s for s in seen.of("statistics") if "step" in s.args]
    assert len(taken) == (18 if workspace else 0)
    by_op = {(s.args["step"], s.args["op"]): s for s in seen.of("op")}
    for s in taken:
        op = by_op[s.args["step"], s.args["op"]]
        assert op.ts + op.dur <= s.ts and above(s) == above(op)


def test_what_is_done_beside_the_steps_has_its_slices(tmp_path):
    path = tmp_path / "t.pftrace"
    program = opstep.loads(CALLS)
    with opstep.Recording(trace=path, workspace=tmp_path / "w.db") as made:
        program.run("main", given(), recording=made, steps=2)
        program.run("main", given(), recording=made, steps=2)
    seen = Seen(path)
    found = Counter(s.name for s in seen.slices.values())
    assert (found["plan main"], found["bind main"], found["before the first step"]) == (1, 1, 1)
    assert (found["between steps"], found["record"]) == (3, 4)
    steps = sorted(seen.of("step"), key=lambda s: s.ts)
    between = sorted(seen.of("between"), key=lambda s: s.ts)
    for before, after in zip(between, steps, strict=True):  # nothing is left blank
        assert before.ts + before.dur == after.ts
    for record, step in zip(sorted(seen.of("record"), key=lambda s: s.ts), steps, strict=True):
        assert record.ts == step.ts + step.dur
    for record, following in zip(seen.of("record"), between[1:], strict=False):
        assert record.ts + record.dur == following.ts
    assert seen.of("write") and all(s.track[-1] == "recorder" for s in seen.of("write"))


def test_waits_of_streams(both):
    told, seen = both
    expected = []
    for key, record in told.streams:
        waits = [w for w in record.activation.layout.waits if w.stream == record.stream]
        for wait, (start, end) in zip(waits, record.waits.tolist(), strict=True):
            where = track(told, key, "CPU", f"stream {record.stream}")
            expected.append((where, f"wait for stream {wait.source}", start, end - start))
    assert Counter(s.brief for s in seen.of("wait")) == Counter(expected)


def test_slices_of_a_stream_stand_side_by_side(both):
    _, seen = both
    assert all(s.parent is None for s in seen.of("op") + seen.of("wait"))
    assert all(s.dur >= 0 for s in seen.slices.values())  # -1: it has no end


def test_what_the_host_did(both):
    told, seen = both
    expected = []
    for _, record in told.hosts:
        layout = record.activation.layout
        names = {s: [layout.plan.values[v].name for v in layout.plan.steps[s].results]
                 for rows in layout.rows for s in rows}  # fmt: skip
        for launch, (start, end) in zip(layout.launches, record.launches.tolist(), strict=True):
            ops = [names[s][0] for s in layout.rows[launch.stream][launch.lo : launch.hi]]
            name = f"launch {ops[0]}"
            if len(ops) > 1:
                name += f" … {ops[-1]} ({len(ops)} ops)"
            expected.append(("launch", name, start, end - start))
        for stream, (start, end) in zip(layout.syncs, record.syncs.tolist(), strict=True):
            expected.append(("sync", f"wait for stream {stream}", start, end - start))
        for step, (start, end) in zip(layout.calls, record.calls.tolist(), strict=True):
            op = layout.plan.steps[step]
            name = f"{layout.plan.values[op.results[0]].name} = {op.op.name}"
            expected.append(("control", name, start, end - start))
    for _, step in told.steps:
        name = f"step {step.step}"
        expected.append(("step", name, step.began_ns, step.ended_ns - step.began_ns))
    kinds = ("launch", "sync", "control", "step")
    found = [s for kind in kinds for s in seen.of(kind)]
    assert Counter((s.category, s.name, s.ts, s.dur) for s in found) == Counter(expected)
    assert {s.track[1:] for s in found} == {("host",)}


def nested_in(told, record) -> list[str]:
    """Names of the slices that the work of an activation stands in."""
    activation = record.activation
    if activation.caller is None:
        return [f"step {activation.step}"]
    caller = activation.caller
    step = caller.plan.steps[activation.call]
    graph = activation.plan.graph
    role = next(k for k, v in step.attrs.items() if str(getattr(v, "name", "")) == graph)
    outer = next(r for _, r in told.hosts if r.activation is caller)
    result = caller.plan.values[step.results[0]].name
    return [*nested_in(told, outer), f"{result} = {step.op.name}", f"{role} {graph}"]


def test_launches_stand_in_the_turns_of_control_flow_in_their_step(both):
    told, seen = both
    hosts = {s.ts: s for s in seen.slices.values() if s.category in ("launch", "control", "sync")}
    for _, record in told.hosts:
        expected = nested_in(told, record)
        for start in np.concatenate([record.launches, record.syncs, record.calls])[:, 0].tolist():
            assert seen.parents(hosts[start]) == expected
    turns = Counter((s.args["activation"], s.args["turn"]) for s in seen.of("turn"))
    inner = [r for _, r in told.hosts if r.activation.caller is not None]
    inner = [r for r in inner if len(r.launches) + len(r.syncs) + len(r.calls)]
    assert turns == Counter((r.activation.number, r.activation.turn) for r in inner)


def test_flows_from_launches_and_along_waits(both):
    told, seen = both
    expected = Counter()
    times = {(r.activation.number, r.stream): r.times for _, r in told.streams}
    for _, record in told.hosts:
        number, layout = record.activation.number, record.activation.layout
        for launch, (start, _) in zip(layout.launches, record.launches.tolist(), strict=True):
            rows = times.get((number, launch.stream), np.zeros((0, 2), int))
            expected.update((start, t) for t in rows[launch.lo : launch.hi, 0].tolist())
        for wait in layout.waits:
            after = times[number, wait.stream]
            if wait.source_row >= 0 and wait.row < len(after):
                source = times[number, wait.source][wait.source_row, 0]
                expected[int(source), int(after[wait.row, 0])] += 1
    flows = Counter()
    for (a, b), n in seen.flows.items():
        flows[seen.slices[a].ts, seen.slices[b].ts] += n
    assert flows == expected


def test_memory_is_counted_from_op_to_op(both):
    told, seen = both
    where = {key: track(told, key, "CPU", "CPU memory") for key in told.runs}
    expected = [(where[key], step.ended_ns, 0.0) for key, step in told.steps]
    for key, record, row, step in told.ops():
        held = allocated(record.activation, step)
        expected.append((where[key], int(record.times[row, 0]), float(held)))
    assert Counter(seen.counts) == Counter(expected)
    assert max(value for *_, value in expected) > 0


def allocated(activation, step: int) -> int:
    """Bytes of temporary tensors when a step begins, counted by hand; its callers' with them."""
    plan, live, at = activation.plan, 0, -1
    while getattr(plan.instructions[at + 1], "step", None) != step:
        at += 1
        instruction = plan.instructions[at]
        if isinstance(instruction, (Alloc, Free)):
            size = plan.buffers[instruction.buffer].nbytes
            live += size if isinstance(instruction, Alloc) else -size
    caller = activation.caller
    return live + (allocated(caller, activation.call) if caller else 0)


def test_what_is_written_is_told(tmp_path):
    with opstep.Recording(trace=tmp_path / "t.pftrace") as made:
        opstep.loads(LOOP).run("main", given(), recording=made, steps=3)
    (written,) = made.close()
    seen = Seen(written.path)
    counts = dict(written.counts)
    assert counts == {"run": 1, "slice": len(seen.slices), "flow": seen.flows.total()}
    assert written.nbytes == written.path.stat().st_size
    assert written.problem is None


def test_runs_of_a_recording_stand_side_by_side(tmp_path, monkeypatch):
    path = tmp_path / "t.pftrace"
    one, two = opstep.loads(branching(3, 3)), opstep.loads(LOOP)
    with recording(monkeypatch, path) as (made, told):
        one.run("main", given(), recording=made, streams=2)
        two.run("main", given(), recording=made)
        one.run("main", given(), recording=made, streams=2)  # goes on with the first
        one.run("main", given(), recording=made, mode="debug")
    seen = Seen(path)
    assert len(told.runs) == 3
    assert {s.track[0] for s in seen.slices.values()} == {track(told, k)[0] for k in told.runs}
    steps = Counter(s.args["run"] for s in seen.of("step"))
    assert [steps[key] for key in told.runs] == [2, 1, 1]
    found = Counter((s.args["run"], s.args["op"], s.ts) for s in seen.of("op"))
    expected = [(a["run"], a["op"], ts) for _, _, ts, _, a in expected_ops(told)]
    assert found == Counter(expected)


def test_a_step_tells_how_it_ran_and_what_came_out(tmp_path):
    path = tmp_path / "t.pftrace"
    with opstep.Recording(trace=path) as made:
        program = opstep.loads(LOOP)
        result = program.run("main", given(), recording=made, streams=2, fill="nan")
    (step,) = Seen(path).of("step")
    arena = step.args.pop("arena_bytes")
    assert (
        arena
        == program.plan(
            types=[result.plan.values[v].type for v in result.plan.inputs],
            policy=opstep.policy(streams=2, fill="nan"),
        ).arena
    )
    assert step.args == {
        "run": made.runs[0].key, "step": 0, "graph": "main", "device": "cpu", "streams": 2,
        "alloc": "reuse", "fill": "nan", "sync": "none", "seed": 0,
        "metrics.total": float(result.outputs[1]),
    }  # fmt: skip


FAILS = """
graph main(x: f32[N]) -> f32[N] {
  twice = mul(x, 2.0)
  low = min(twice)
  fine = greater(low, 0.0)
  assert fine, "x is not positive"
  y = sqrt(twice)
  return y
}
"""


def test_a_run_that_fails_tells_where(tmp_path, monkeypatch):
    path = tmp_path / "t.pftrace"
    program = opstep.loads(FAILS)
    with recording(monkeypatch, path) as (made, told):
        program.run("main", {"x": [1.0, 2.0]}, recording=made)
        with pytest.raises(OpstepError):
            program.run("main", {"x": [1.0, -2.0]}, recording=made)
    seen = Seen(path)
    (failed,) = seen.of("error")
    assert "x is not positive" in failed.name
    assert "x is not positive" in failed.args["error"]
    assert [s.name for s in seen.of("step")] == ["step 0"]
    assert failed.ts == told.ends[0][1].ended_ns
    # The ops of the step that failed ran, and so are there.
    assert Counter(s.ts for s in seen.of("op")) == Counter(
        ts for _, _, ts, _, _ in expected_ops(told)
    )


def test_the_programs_have_what_is_to_be_seen(both, request):
    """Several streams, waits and flows along them, turns: else the tests above would pass idly."""
    _, seen = both
    which = request.node.callspec.id
    streams = {s.track for s in seen.of("op")}
    assert (len(streams) > 1) == (which in ("four", "fresh"))
    assert bool(seen.of("wait")) == (which in ("four", "fresh"))
    turns = {s.name for s in seen.of("turn")}
    looped = {"test large", "body halve", "then half"}
    assert turns == (looped if "loop" in which else set())
    assert bool(seen.of("sync")) == ("debug" in which)


GUIDE = (Path(__file__).parents[2] / "docs" / "timeline.md").read_text(encoding="utf-8")


def test_the_guide_names_every_argument(both):
    told, seen = both
    rows = [line.split("|")[1] for line in GUIDE.splitlines() if line.startswith("| `")]
    described = {name for row in rows for name in re.findall(r"`([^`]+)`", row)}
    used = {key for s in seen.of("op") + seen.of("control") for key in s.args}
    assert used <= described
    if any(r.activation.caller for _, r in told.streams):
        assert described - used <= {"GB/s", "kernels.1.name"}  # the latter is a GPU's
    others = {k for s in seen.slices.values() for k in s.args} - used
    assert all(f"`{key.partition('.')[0]}" in GUIDE for key in others)
    assert {s.category for s in seen.slices.values()} <= set(re.findall(r"`(\w+)`", GUIDE))


def test_questions_of_the_guide_are_answered(tmp_path):
    with opstep.Recording(trace=tmp_path / "t.pftrace") as made:
        opstep.loads(branching(4, 6)).run("main", given(), recording=made, streams=4)
    questions = re.findall(r"```sql\n(.*?)```", GUIDE, re.DOTALL)
    assert len(questions) >= 5
    with Engine(tmp_path / "t.pftrace") as engine:
        for question in questions:
            assert engine.query(question).rows, question
        waited = next(q for q in questions if "waited_for" in q)
        of_guide = engine.query(waited).rows
        whole = engine.query("select count(), sum(dur) / 1e3 from slice where category = 'wait'")
        assert (len(of_guide), sum(us for *_, us in of_guide)) == pytest.approx(whole.rows[0])


@pytest.mark.parametrize("text, options", WAYS[1:5], ids=IDS[1:5])
def test_a_workspace_of_the_same_runs_has_the_same_ops(tmp_path, text, options):
    trace, workspace = tmp_path / "t.pftrace", tmp_path / "w.db"
    with opstep.Recording(trace=trace, workspace=workspace) as made:
        opstep.loads(text).run("main", given(), recording=made, **options)
    ids = ("run", "step", "op")
    shared = ("name", "site", "frame", "graph", "file", "line", "statement", "bytes", "flops")
    with closing(sqlite3.connect(workspace)) as db:
        rows = db.execute(
            f"""select key, e.step, e.op, start_ns, end_ns, {", ".join(f"o.{c}" for c in shared)}
            from executions e join ops o on o.run = e.run and o.op = e.op
            join runs r on r.id = e.run where start_ns is not null"""
        ).fetchall()
    seen = Seen(trace)
    found = Counter(
        (*(s.args[c] for c in ids), s.ts, s.ts + s.dur, *(s.args.get(c, "") for c in shared))
        for s in (*seen.of("op"), *seen.of("control"))
    )
    assert found == Counter(rows)
