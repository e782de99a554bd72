"""Training runs with a fault: a hunt tells the step, the phase, the line and the rows of the batch.
Healthy ones: it is silent.
"""

from __future__ import annotations

import numpy as np
import pytest
import seeded_runs

import opstep
from opstep.hunting.records import record
from opstep.hunting.stepwise import Diverged
from opstep.runtime.ir.printer import print_module
from opstep.training.data import Batches, Dataset
from opstep.training.loop import Settings, Trainer
from opstep.training.watching import TrainingHunt


@pytest.mark.parametrize("path", seeded_runs.diverging(), ids=lambda p: p.stem)
def test_the_origin_of_a_divergence_is_found(path):
    run = seeded_runs.read(path)
    found = opstep.hunt(run.step_program(), "loss_step", run.batches(), seed=0)
    check(run.expected, found)


def check(expected, found):
    first = found.first
    assert first is not None, found.report()
    assert (found.step, first.phase, first.bad) == (expected.step, expected.phase, expected.bad)
    if expected.phase == "data":
        assert first.given == expected.rule
    else:
        assert first.verdict.rules[0][0] == expected.rule
        assert expected.op in ("", first.op)
        assert expected.line in (0, first.where.line)
        assert first.where.target == expected.param
    rows = first.rows.rows if first.rows else ()
    assert tuple(r.row for r in rows) == expected.rows, found.report()
    for told in expected.told:
        assert told in found.report()
    data = record(found)["findings"][0]
    assert data["phase"] == expected.phase
    assert tuple(r["row"] for r in data["rows"]) == expected.rows


@pytest.mark.parametrize("path", seeded_runs.healthy(), ids=lambda p: p.stem)
def test_a_healthy_run_is_silent(path):
    run = seeded_runs.read(path)
    found = opstep.hunt(run.step_program(), "loss_step", run.batches(), seed=0)
    assert not found.found, found.report()
    assert found.steps == run.steps


def trainer_of(run, observers, shuffled=False, **more):
    data = Dataset(run.columns)
    batches = Batches(data, run.batch, 7 if shuffled else None)
    program = run.step_program()
    program.reseed_with(0)
    return Trainer(program, "loss_step", batches, Settings(batch=run.batch), observers, **more)


def diverged(trainer):
    with pytest.raises(Diverged) as caught:
        trainer.run()
    return caught.value.hunt


@pytest.mark.parametrize("path", seeded_runs.diverging(), ids=lambda p: p.stem)
def test_a_hunt_at_full_speed_in_training_finds_the_same(path):
    run = seeded_runs.read(path)
    trainer = trainer_of(run, [TrainingHunt()])
    found = diverged(trainer)
    check(run.expected, found)
    assert trainer.step == run.expected.step
    for name, value in trainer.program.params.items():
        assert np.isfinite(value).all(), name  # as before the bad step
    assert found.replays == 1 + (run.expected.step > 0)


@pytest.mark.parametrize("path", seeded_runs.healthy(), ids=lambda p: p.stem)
def test_training_under_a_hunt_gives_the_same_bits(path):
    run = seeded_runs.read(path)
    hunted, plain = trainer_of(run, [TrainingHunt()]), trainer_of(run, [])
    assert hunted.run().kind == "finished"
    plain.run()
    assert hunted.step == plain.step == run.steps
    for name in plain.program.params:
        assert hunted.program.params[name].tobytes() == plain.program.params[name].tobytes(), name


@pytest.mark.parametrize(
    ("name", "params"),
    [("rate_too_high", {"a", "b"}), ("decay_that_grows", {"w"}), ("bad_label", set())],
)
def test_params_that_had_grown_are_told(name, params):
    (path,) = [p for p in seeded_runs.diverging() if p.stem == name]
    found = diverged(trainer_of(seeded_runs.read(path), [TrainingHunt()]))
    assert {param for param, _, _ in found.grown} == params
    assert all(after > 100 * before > 0 for _, before, after in found.grown)
    assert ("params had grown" in found.report()) == bool(params)
    assert {one["param"] for one in record(found)["grown"]} == params


def test_rows_of_the_batch_are_told_as_rows_of_the_shuffled_data():
    (path,) = [p for p in seeded_runs.diverging() if p.stem == "bad_label"]
    run = seeded_runs.read(path)
    trainer = trainer_of(run, [TrainingHunt()], shuffled=True)
    found = diverged(trainer)
    row = found.first.rows.rows[0].row
    assert found.data_rows[row] == 21
    told = f"row {row} of the batch (row 21 of the data): labels[{row}] = 11, of 10 classes"
    assert told in found.report()
    assert record(found)["findings"][0]["rows"][0]["data_row"] == 21


@pytest.mark.parametrize("name", ["log_of_zero", "sqrt_at_zero_backward", "momentum_overflow"])
def test_a_step_that_was_read_from_a_text_has_phases_and_rows(name):
    (path,) = [p for p in seeded_runs.diverging() if p.stem == name]
    run = seeded_runs.read(path)
    step = run.step_program()
    read = opstep.loads(print_module(step.module), "step.opg")
    found = opstep.hunt(read, "loss_step", run.batches(), seed=0)
    first, expected = found.first, run.expected
    assert (found.step, first.phase, first.bad) == (expected.step, expected.phase, expected.bad)
    assert first.where.target == expected.param
    assert tuple(r.row for r in (first.rows.rows if first.rows else ())) == expected.rows
    assert expected.line == 0 or f"{name}.opg:{expected.line}" in first.where.imported
