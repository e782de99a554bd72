"""Conditions on the values of a step of training, and what is told when one holds."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import seeded_runs
from test_diverging import diverged, trainer_of

import opstep
from opstep.hunting.stepwise import Diverged
from opstep.runtime.ir.diagnostics import OpstepError
from opstep.runtime.ir.errors import InputError
from opstep.training.journal import checkpoint
from opstep.training.recorded import RunRecord
from opstep.training.watching import TrainingHunt, Tripped, Watch


def run_of(name, **options):
    paths = [*seeded_runs.diverging(), *seeded_runs.healthy()]
    run = seeded_runs.read(next(p for p in paths if p.stem == name))
    run.options |= options
    return run


def tripped(*conditions, run=None, observers=()):
    trainer = trainer_of(run or run_of("rate_too_high", lr=10.0), [*observers, Watch(*conditions)])
    with pytest.raises(Tripped) as caught:
        trainer.run()
    assert trainer.step == caught.value.step + 1  # which has taken effect
    return caught.value


def test_an_explosion_trips_before_it_is_nan():
    found = tripped("absmax(d_*) > 1e3", observers=[TrainingHunt()])
    first = found.trips[0]
    assert (found.step, first.target) == (2, "d_l_sub")
    assert first.place == "the backward of `l = mse_loss(y, t)`, rate_too_high.opg:10"
    ((figure, history),) = first.history.items()
    assert figure == "absmax(d_l_sub)"
    assert [step for step, _ in history] == [0, 1, 2]
    values = [value for _, value in history]
    assert values[0] < values[1] < 1e3 < values[2] < 1e5
    report = found.report()
    assert "step 2: absmax(d_*) > 1e3 holds, for d_l_sub" in report
    assert "absmax(d_l_sub) by step:" in report and "it holds for 4 more: d_r, d_b" in report
    assert "absmax(d_l_sub) is 7808" in str(found)


FIGURES = {
    "max(abs(d_a)) > 1e3": ("max(abs(d_a))", lambda d: np.abs(d).max()),
    "l2(d_a) > 1e3": ("l2(d_a)", np.linalg.norm),
    "min(d_a) < -1e3": ("min(d_a)", np.min),
    "max(d_a) > 1e3": ("max(d_a)", np.max),
    "std(d_a) > 1e3": ("std(d_a)", np.std),
    "mean(d_a) > -1e30": ("mean(d_a)", np.mean),
}


@pytest.mark.parametrize("text", FIGURES)
def test_a_figure_is_that_of_the_value(text):
    run = run_of("rate_too_high", lr=10.0)
    found = tripped(text, run=run)
    name, figure = FIGURES[text]
    program = run.program.with_grad("loss", ["a"])
    trainer = trainer_of(run, [])
    for batch in list(run.batches())[: found.step]:
        trainer.program.run("loss_step", batch)
    program.params.update({n: trainer.program.params[n] for n in program.params})
    batch = list(run.batches())[found.step]
    (gradient,) = program.run("loss_grad", batch).outputs[1:]
    assert found.trips[0].history[name][-1][1] == pytest.approx(float(figure(gradient)), rel=1e-5)


def test_the_gradient_of_a_param_has_its_line():
    assert "rate_too_high.opg:9" in tripped("absmax(d_b) > 100").trips[0].place
    found = tripped("absmax(d_?) > 100")
    places = {t.target: t.place for t in found.trips}
    assert places["d_b"] == "the backward of `y = linear(r, b)`, rate_too_high.opg:9"


def test_conditions_take_params_the_loss_and_arithmetic():
    assert tripped("loss > 100").trips[0].history.keys() == {"loss"}
    found = tripped("count(a > 1e3) > 2 or l2(b) > 1e9")
    assert found.step == 2
    found = tripped("absmax(b) / absmax(a) < 0.5", "lr > 1")
    assert [t.condition for t in found.trips] == ["lr > 1"]


def test_a_condition_on_sums_of_f16_does_not_overflow():
    run = run_of("f16_overflow")
    run.columns["t"][:] = 200  # whose squares are finite in f16, and their norm is not
    found = tripped("l2(s) > 7e4", run=run)
    assert found.step == 0


def test_training_under_a_watch_gives_the_same_bits():
    for path in seeded_runs.healthy():
        run = seeded_runs.read(path)
        watch = Watch("absmax(*) < 0", "l2(d_*) < 0", "std(*) < 0")
        watched, plain = trainer_of(run, [TrainingHunt(), watch]), trainer_of(run, [])
        assert watched.run().kind == "finished"
        plain.run()
        for name in plain.program.params:
            mine, other = watched.program.params[name], plain.program.params[name]
            assert mine.tobytes() == other.tobytes(), (path.stem, name)
        assert watched.results.keys() == plain.results.keys()


def test_a_hunt_says_the_same_under_a_watch():
    run = run_of("sqrt_at_zero_backward")
    watch = Watch("absmax(*) < 0", "mean(d_*) > 1e30")
    with_watch = diverged(trainer_of(run, [TrainingHunt(), watch]))
    alone = diverged(trainer_of(run, [TrainingHunt()]))
    assert with_watch.report() == alone.report()


WRONG = {
    "absmax(q_*) > 1": ("no value of the step is called q_*", 7, "there are h, r"),
    "absmax(grad_*) > 1": ("no value of the step is called grad_*", 7, ""),
    "absmax(d_q) > 1": ("the step has no d_q", 7, "did you mean"),
    "absmx(d_*) > 1": ("there is no function absmx", 0, "did you mean absmax"),
    "absmax(d_*) > 1 +": ("expected", 17, ""),
    "d_a > 3": ("d_a is a f32[8, 4]; a condition takes figures of it", 0, "such as absmax(d_a)"),
    "absmax(d_a)": ("absmax(d_a) is a number", 0, "such as absmax(d_a) > 1e3"),
    "loss": ("loss is a number, and a condition says yes or no", 0, "such as loss > 1e3"),
    "absmax(a*b) > 1": ("no value of the step is called a*b", 7, "a product has spaces"),
    "absmax(d_*) > absmax(a*)": ("a* is a second pattern beside d_*", 21, ""),
}


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_condition_is_pointed_at(text):
    message, column, hint = WRONG[text]
    with pytest.raises(InputError) as caught:
        trainer_of(run_of("rate_too_high"), [Watch(text)]).run()
    (found,) = caught.value.diagnostics
    assert message in found.message
    assert found.source.text == text and found.span.start == column
    assert hint in str(found.hint)


def test_a_param_alone_may_stand_left_of_the_comparison():
    for text in ("a > -1e9", "a[0] > -1e9", "a[0, 0] > -1e9"):
        assert tripped(text).step == 0


def test_a_product_is_no_pattern():
    for text in ("lr * 2 > 1", "lr*(1+1) > 1", "2*lr > 1", "(lr)*2 > 1", "lr**2 > 1"):
        assert tripped(text).step == 0


def test_a_failed_evaluation_is_pointed_at():
    with pytest.raises(OpstepError) as caught:
        trainer_of(run_of("rate_too_high"), [Watch("absmax(a + b) > 1")]).run()
    (found,) = caught.value.diagnostics
    assert found.source.text == "absmax(a + b) > 1"


def test_a_run_that_was_watched_goes_on(tmp_path):
    run, file = run_of("bad_label"), tmp_path / "runs.db"
    run.columns["labels"][21] = 0
    given = {"data": run.columns, "batch": 8, "workspace": file, "lr": 0.01}
    program = run.program
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the text of the run is the same
        with pytest.raises(Tripped):
            opstep.train(program, **given, watch="loss > 0")
        resumed = opstep.train(program, **given, resume="last", hunt=True, watch="loss > 1e9")
    whole = opstep.load(program.module.source.path)
    opstep.train(whole, run.columns, batch=8, lr=0.01)
    assert resumed.step == 8
    for name in whole.params:
        assert program.params[name].tobytes() == whole.params[name].tobytes(), name


def test_a_hunt_leaves_the_step_before_as_a_checkpoint(tmp_path):
    run, file = run_of("corrupt_pixel"), tmp_path / "runs.db"
    with pytest.raises(Diverged) as caught:
        opstep.train(run.program, run.columns, batch=8, workspace=file, hunt=True)
    found = checkpoint(file, "last")
    assert found.step == caught.value.hunt.step
    assert all(np.isfinite(a).all() for a in found.values.values())


def test_figures_are_metrics_of_the_run_in_a_workspace(tmp_path):
    file = tmp_path / "runs.db"
    record = RunRecord(file)
    found = tripped("absmax(d_*) > 1e3", observers=[record])
    with opstep.Workspace(file) as ws:
        run = ws.run("last")
        history = dict(enumerate(run.metric("absmax.d_l_sub")))
        assert history == pytest.approx(dict(found.trips[0].history["absmax(d_l_sub)"]))
        assert len(run.metric("absmax.d_a")) == len(run.metric("loss")) == found.step + 1
        (line,) = ws.lines("metrics.absmax.d_l_sub")
        assert len(line.ys) == found.step + 1
