"""Whatever a workspace says of a run that went bad is so: each statement is held against the op
alone, computed again in f64 from what it was given in that step.

``--trained N`` takes N random runs of training instead of few.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import pytest
from going_bad import record

import opstep
from opstep.cli.main import main
from opstep.dap.hunted import recorded
from opstep.hunting.search import hunt
from opstep.runtime.device.cpu.device import execute, statistics_of
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.op import complete
from opstep.runtime.ir.types import TensorType, dtype_of
from opstep.runtime.plan.plan import DEBUG
from opstep.trace.describe import describe
from opstep.trace.workspace.browsing.finding_report import figures_text, finding_report

FIGURES = ("min", "max", "mean", "std", "nan", "posinf", "neginf", "zero", "count")


class Done(NamedTuple):
    """One op of a step: what went in and came out, and the latter in f64, rounded to its type."""

    operands: list[np.ndarray]
    results: list[np.ndarray]
    exact: list[np.ndarray]


def done(program: opstep.Program, graph: str, inputs, params) -> dict[str, Done]:
    """All ops of a step by site, each run alone."""
    types = [TensorType(dtype_of(a.dtype), a.shape) for a in inputs.values()]
    plan = program.plan(graph, types, DEBUG)
    values: dict[int, np.ndarray] = dict(zip(plan.inputs, inputs.values(), strict=True))
    for k, v in enumerate(plan.values):
        buffer = plan.buffers[v.buffer]
        if buffer.kind == "const":
            values[k] = np.asarray(buffer.literal, v.type.dtype.numpy)
        elif buffer.kind == "param":
            values.setdefault(k, params[buffer.name])
    found: dict[str, Done] = {}
    for step in plan.steps:
        if step.op.name == "update":
            values[step.results[0]] = values[step.operands[0]]
            continue
        operands = [values[v] for v in step.operands if v is not None]
        attrs = complete(step.op, step.attrs)
        with np.errstate(all="ignore"):
            wide = [a.astype(np.float64) if a.dtype.kind not in "iub" else a for a in operands]
            exact = step.op.oracle(*wide, **attrs)
            exact = list(exact) if isinstance(exact, (tuple, list)) else [exact]
        results = execute(step.op, operands, attrs)
        with np.errstate(all="ignore"):
            rounded = [np.asarray(e).astype(r.dtype) for e, r in zip(exact, results, strict=True)]
        values |= dict(zip(step.results, results, strict=True))
        found[describe(plan, step).site] = Done(operands, results, rounded)
    return found


def finite(arrays) -> bool:
    return all(np.isfinite(a).all() for a in arrays)


def hold(workspace: opstep.Workspace, path, run, truth) -> list[str]:
    """Checks all that is said of a run; the statements. `truth`: program, graph, and by step what
    it was given.
    """
    program, graph, given = truth
    said = []
    check_given(run, given)
    first = workspace.sql("select step, op, value, verdict from first_bad where run = ?", (run.id,))
    sites = {o.op: o.site for o in run.ops}
    for step, op, value, verdict in first.rows:
        if op >= 0 and step in given and verdict is not None:
            ops = done(program, graph, *given[step])
            assert finite(ops[sites[op]].operands) == (verdict == "origin"), (step, value)
            said.append(f"{value} {verdict}")
    rows = workspace.sql("select id, step, op, kind, value, message from findings where run = ?",
                         (run.id,)).rows  # fmt: skip
    for id, step, op, kind, value, message in rows:
        said.append(message)
        if op is None or kind not in ("nan", "inf") or max(step, 0) not in given:
            continue
        inputs, params = given[max(step, 0)]
        wrong, count = map(int, re.search(r": (\d+) of (\d+) elements", message).groups())
        if op < 0:
            array = inputs[value] if message.startswith("input") else params[value]
        else:
            one = done(program, graph, inputs, params)[sites[op]]
            array = one.exact[0]
            assert "operands were finite" not in message or finite(one.operands), message
            check_report(finding_report(workspace, run, id), one.operands)
        assert count == array.size
        test = np.isnan if kind == "nan" else np.isinf
        assert wrong == int(test(array).sum()), message
        check_debugged(path, run, value, step, truth)
    return said


def check_given(run, given) -> None:
    """Statistics of inputs and named tensors are of their own step."""
    for name in {n for inputs, params in given.values() for n in (*inputs, *params)}:
        for row in run.stats(value=name):
            if row.op >= 0 or row.step < 0 or row.step not in given:
                continue
            inputs, params = given[row.step]
            array = inputs[name] if row.name == "input" else params[name]
            told, wanted = row.statistics, statistics_of(array)
            same = ("nan", "posinf", "neginf", "min", "max", "count")
            assert [getattr(told, f) for f in same] == [getattr(wanted, f) for f in same], row


def check_report(text: str, operands: list[np.ndarray]) -> None:
    """What went in, as the report shows it."""
    part = text.partition("what went in\n")[2].partition("\n\n")[0].splitlines()
    for line, array in zip(part, operands, strict=False):
        told = line.partition("]  ")[2]
        if told in ("a number", "not known", "no statistics were taken"):
            continue
        s = statistics_of(array)
        assert told == figures_text(tuple(getattr(s, f) for f in FIGURES)), line


def check_debugged(path, run, value: str, step: int, truth) -> None:
    """A debugger that is to begin there has what the step was given, or says that it has not."""
    refused = ""
    try:
        (program, graph, inputs), steps = recorded(path, run.key, (value, 0))
    except InputError as error:
        refused = str(error)
    if refused:
        assert "not kept" in refused
        return
    if steps == 1 and step > 0:
        wanted, params = truth[2][step]
        for name, array in inputs.items():
            assert array.tobytes() == wanted[name].tobytes()
        for name in program.params:
            assert program.params[name].tobytes() == params[name].tobytes()
    found = hunt(program, graph, inputs, steps=steps, masked=True)
    assert found.found or found.intended, (value, step)


def pytest_generate_tests(metafunc):
    share = {"number": 1, "module": 3}
    for name in set(share) & set(metafunc.fixturenames):
        metafunc.parametrize(name, range(metafunc.config.getoption("--trained") // share[name]))


def test_what_is_said_of_training_that_goes_bad(number, tmp_path):
    path = tmp_path / "runs.db"
    going = record(np.random.default_rng([7, number]), path)
    with opstep.Workspace(path) as workspace:
        truth = going.program, going.graph, dict(enumerate(going.given))
        hold(workspace, path, workspace.run(), truth)


def test_what_is_said_of_modules_of_pytorch_that_go_bad(module, tmp_path):
    """What the steps were given, the workspace has: for these are other graphs than one wrote."""
    torch = pytest.importorskip("torch")
    from going_bad_torch import train

    torch._dynamo.reset()
    path, xs, said = tmp_path / "runs.db", [], []
    with opstep.Recording(workspace=path) as recording:
        train(np.random.default_rng([8, module]), recording, xs)
    with opstep.Workspace(path) as workspace:
        for run in workspace.runs:
            for f in (f for f in run.findings if f.kind in ("nan", "inf")):
                step = max(f.step, 0)
                (program, graph, inputs), _ = recorded(path, run.key, (f.value, 0))
                if "x" in inputs and run.graph == "forward":
                    assert inputs["x"].tobytes() == xs[step].tobytes()
                truth = program, graph, {step: (inputs, dict(program.params))}
                said += hold(workspace, path, run, truth)
    torch._dynamo.reset()
    assert said


# --- single runs ----------------------------------------------------------------------------------

DOUBLED = "graph main(x: f32[4]) -> f32[4] {\n  y = mul(x, 2.0)\n  return y\n}\n"
LEARNS = """\
param w: f32[4] = ones()
graph main(x: f32[4]) -> f32[4] {
  y = log(x)
  z = mul(y, w)
  n = add(w, z)
  w <- n
  return z
}
"""


def run_on(path, text: str, rows, **settings) -> opstep.Workspace:
    """A workspace with a run whose steps have these inputs."""
    program = opstep.loads(text, "one.opg")
    with opstep.Recording(workspace=path, **settings) as recording:
        for row in rows:
            program.run("main", {"x": np.array(row, np.float32)}, recording=recording)
    return opstep.Workspace(path)


GOOD, BAD = [1, 2, 3, 4], [1, np.nan, 3, 4]


def test_a_bad_input_of_a_later_step_is_what_is_found(tmp_path):
    with run_on(tmp_path / "runs.db", DOUBLED, [GOOD, GOOD, BAD]) as workspace:
        (finding,) = workspace.run().findings
        assert finding.message == "input x: 1 of 4 elements are NaN"
        assert (finding.step, finding.op) == (2, -1)
        report = finding_report(workspace, workspace.run(), 1)
    assert "x: f32[4]  mean 2.667  std 1.247  min 1  max 4  1 NaN  of 4" in report


def test_nothing_is_said_of_operands_that_were_not_looked_at(tmp_path):
    with run_on(tmp_path / "runs.db", DOUBLED, [GOOD, BAD], stats="y") as workspace:
        assert [f.message for f in workspace.run().findings] == [
            "mul gives y: 1 of 4 elements are NaN"
        ]
        found = workspace.run().first_bad()
        assert found is not None and found.verdict is None


def test_a_param_set_between_two_steps_is_what_is_found(tmp_path):
    program, path = opstep.loads(LEARNS), tmp_path / "runs.db"
    with opstep.Recording(workspace=path) as recording:
        for step in range(3):
            if step == 2:
                program.params["w"] = np.array(BAD, np.float32)
            program.run("main", {"x": np.ones(4, np.float32)}, recording=recording)
    with opstep.Workspace(path) as workspace:
        (finding,) = workspace.run().findings
        assert finding.message == "param w: 1 of 4 elements are NaN" and finding.step == 2
        assert workspace.run().repeatable == 2  # the third does not follow from the first


def test_what_the_bad_step_was_given_is_kept(tmp_path):
    path = tmp_path / "runs.db"
    with run_on(path, DOUBLED, [GOOD, [5, 6, 7, 8], BAD, GOOD]) as workspace:
        run = workspace.run()
        assert [(c.step, c.kind) for c in run.checkpoints][:2] == [(-1, "start"), (1, "kept")]
        (_, _, inputs), steps = recorded(path, run.key, ("x", 0))
        assert steps == 1 and np.isnan(inputs["x"][1])
        assert workspace.rerun(run, step=2).steps == 1
        with pytest.raises(InputError, match="from step 1 on: what that needs was not kept"):
            workspace.rerun(run, step=1)


def test_a_step_that_changed_what_it_was_given_is_refused(tmp_path):
    path = tmp_path / "runs.db"
    with run_on(path, LEARNS, [GOOD, GOOD, [1, -1, 1, 1]]) as workspace:
        run = workspace.run()
    with pytest.raises(InputError, match="from step 2 on: what that needs was not kept"):
        recorded(path, run.key, ("y", 3))


def test_a_hunt_keeps_what_the_bad_step_was_given(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.opg").write_text(LEARNS)
    np.save("x.npy", np.array([GOOD, GOOD, [1, -1, 1, 1], GOOD], np.float32))
    assert main(["hunt", "one.opg", "--data", "x=x.npy", "--workspace", "runs.db"]) == 5
    (program, _, inputs), steps = recorded(tmp_path / "runs.db", "last", ("y", 3))
    assert steps == 1 and inputs["x"][1] == -1
    w = np.ones(4) + 2 * np.log(np.array(GOOD, np.float32)) + np.log(GOOD) ** 2
    np.testing.assert_allclose(program.params["w"], w, rtol=1e-6)
    capsys.readouterr()
    assert main(["ws", "runs.db", "rerun", "last", "--step", "2"]) == 0
    assert "differs" not in capsys.readouterr().out
