"""``opstep.train``: what is learned, validated, recorded."""

from __future__ import annotations

import io
import re

import numpy as np
import pytest

import opstep
from opstep.runtime.device.cache import Compiler
from opstep.runtime.ir.errors import InputError, NotFinite
from opstep.training.data import Position, Stream
from opstep.training.loop import Observer, Settings
from opstep.training.progress import Progress
from opstep.training.train import prepare

NET = """
param w: f32[1, 3] = zeros()
param mean: f32[3] = zeros()
state seen: i32[] = 0

graph loss(x: f32[N, 3], y: f32[N, 1]) -> f32[], f32[] {
  m = sub(x, mean)
  p = linear(m, w)
  d = sub(p, y)
  s = square(d)
  l = mean(s)
  far = max(s)
  more = add(seen, 1)
  seen <- more
  return l, far
}

graph size() -> f32[] {
  n = norm(w)
  return n
}

graph words(label: i32[N]) -> f32[] {
  c = cast(label, dtype=f32)
  l = mean(c)
  return l
}
"""
RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 3)).astype(np.float32)
DATA = {"x": X, "y": X @ np.float32([[1], [2], [3]])}


def trained(**options):
    program = opstep.loads(NET)
    given = {"epochs": 20, "batch": 8, "optimizer": "sgd", "lr": 0.1, **options}
    return program, opstep.train(program, given.pop("data", DATA), **given)


def test_a_line_is_found():
    program, trainer = trained(freeze=["mean"])
    assert trainer.outcome.kind == "finished" and trainer.step == 100
    assert np.allclose(program.params["w"], [[1, 2, 3]], atol=1e-3)
    assert not program.params["mean"].any()
    assert program.params["seen"] == 100
    assert trainer.metrics.keys() == {"loss", "far"}
    assert trainer.metrics["far"] >= trainer.metrics["loss"]


def test_the_same_steps_as_in_a_loop_of_ones_own():
    _, trainer = trained(epochs=3, seed=5)
    step = opstep.loads(NET).with_optimizer("loss", "sgd", lr=0.1)
    for epoch in range(3):
        order = np.random.default_rng([5, epoch]).permutation(40)
        for k in range(0, 40, 8):
            result = step.run("loss_step", {n: a[order[k : k + 8]] for n, a in DATA.items()})
    assert result["l"] == trainer.metrics["loss"]
    for name in step.params:
        assert step.params[name].tobytes() == trainer.program.params[name].tobytes()


@pytest.mark.parametrize("threads", [1, 3])
def test_validation_changes_nothing(threads):
    """Whatever states its graphs update; batches of another size are averaged by rows."""
    plain, _ = trained(epochs=4, freeze=["mean"])
    program = opstep.loads(NET)
    held = {n: a[:13] for n, a in DATA.items()}
    settings = Settings(epochs=4, batch=8, threads=threads, validate_every=3)
    options = {"lr": 0.1, "freeze": ["mean"]}
    trainer = prepare(program, DATA, settings, optimizer="sgd", options=options,
                      validate=held, metrics=["size"])  # fmt: skip
    steps = []

    class Noted:
        def began(self, trainer): ...
        def stepped(self, trainer, metrics): ...
        def ended(self, trainer, outcome): ...
        def validated(self, trainer, metrics):
            steps.append((trainer.step, trainer.is_best))

    trainer.observers.append(Noted())
    outcome = trainer.run()
    assert steps == [(15, True), (20, True)]
    for name in plain.params:
        assert plain.params[name].tobytes() == trainer.program.params[name].tobytes()
    whole = trainer.program.run("loss", held)
    assert np.isclose(outcome.validation["loss"], float(whole["l"]), rtol=1e-5)
    assert np.isclose(outcome.validation["size"], np.linalg.norm(plain.params["w"]))
    assert outcome.best == outcome.validation


def test_a_run_goes_on_from_a_position():
    whole = prepare(opstep.loads(NET), DATA, Settings(epochs=3, batch=8))
    whole.run()
    first = prepare(opstep.loads(NET), DATA, Settings(epochs=1, batch=8))
    first.run()
    rest = prepare(opstep.loads(NET), DATA, Settings(epochs=3, batch=8))
    rest.program.params.load(dict(first.program.params))
    rest.step, rest.position = first.step, first.position
    rest.run()
    assert rest.step == whole.step == 15
    for name in whole.program.params:
        assert whole.program.params[name].tobytes() == rest.program.params[name].tobytes()


def test_the_best_is_given_back(tmp_path):
    """In place of the last, which the workspace has."""
    held, seen = {n: a[:8] for n, a in DATA.items()}, []

    class Noted:
        def began(self, trainer): ...
        def stepped(self, trainer, metrics): ...
        def ended(self, trainer, outcome): ...
        def validated(self, trainer, metrics):
            seen.append((metrics["size"], trainer.program.params["w"]))

    program = opstep.loads(NET)
    program.params["w"] = np.float32([[9, 9, 9]])
    opstep.train(
        program, DATA, batch=8, epochs=6, optimizer="sgd", lr=0.1, freeze=["mean"],
        validate=held, best="size", metrics=["size"], observers=[Noted()],
        workspace=tmp_path / "runs.db",
    )  # fmt: skip
    figures = [size for size, _ in seen]
    assert figures.index(max(figures)) < 5  # the test would not tell
    _, best = max(seen, key=lambda one: one[0])
    assert program.params["w"].tobytes() == best.tobytes()
    with opstep.Workspace(tmp_path / "runs.db") as workspace:
        assert workspace.load("w").tobytes() == seen[-1][1].tobytes()
    with pytest.raises(InputError, match="best: no validation has the figure wide"):
        trained(validate=held, best="wide")


def test_batches_of_an_iterable():
    batches = [{n: a[k : k + 8] for n, a in DATA.items()} for k in range(0, 40, 8)]
    _, trainer = trained(data=batches, epochs=2)
    assert trainer.step == 10 and trainer.steps == 10
    stream = Stream(batches)
    assert [p for p, _ in stream.rest(Position(1, 3))] == [Position(1, 4), Position(2)]
    with pytest.raises(InputError, match="the data has no batches in epoch 2"):
        trained(data=iter(batches), epochs=2)
    with pytest.raises(InputError, match="cosine needs data with a length"):
        trained(data=iter(batches), schedule="cosine")
    with pytest.raises(InputError, match="have no share to validate on"):
        trained(data=batches, validate=0.5)
    with pytest.raises(InputError, match="the batch of step 1 has no x: y"):
        trained(data=[{"y": DATA["y"]}])


LABELS = """
param w: f32[3, 2] = zeros()

graph loss(x: f32[N, 2], label: i32[N]) -> f32[] {
  y = linear(x, w)
  l = softmax_cross_entropy(y, label)
  return l
}
"""


def test_a_label_of_an_iterable_that_is_no_class():
    bad = {"x": np.zeros((4, 2), np.float32), "label": np.int32([0, 1, 5, 2])}
    with pytest.raises(NotFinite) as caught:
        opstep.train(opstep.loads(LABELS), [bad], graph="loss")
    assert caught.value.diagnostics[0].message == (
        "the loss is NaN at step 1 (epoch 1): the batch: label: row 2 has 5, and "
        "softmax_cross_entropy takes 0 to 2"
    )


def test_batches_of_the_size_that_a_loss_takes():
    text = LABELS.replace("N,", "6,").replace("[N]", "[6]")
    x, label = np.zeros((20, 2), np.float32), np.zeros(20, np.int32)
    trainer = opstep.train(opstep.loads(text), {"x": x, "label": label})
    assert trainer.step == 3  # what is left of the rows makes no batch
    with pytest.raises(InputError, match="takes batches of 6 rows, not of 8"):
        opstep.train(opstep.loads(text), {"x": x, "label": label}, batch=8)


def test_what_an_observer_raises_ends_training():
    program = opstep.loads(NET)

    class Full:
        def stepped(self, trainer, metrics):
            raise OSError("no room")

        def began(self, trainer): ...
        def validated(self, trainer, metrics): ...
        def ended(self, trainer, outcome): ...

    with pytest.raises(OSError, match="no room"):
        opstep.train(program, DATA, batch=8, observers=[Full()])


def test_an_observer_has_all_methods():
    class Quiet(Observer):
        pass

    class Half:
        def stepped(self, trainer, metrics): ...
        def ended(self, trainer, outcome): ...

    assert trained(observers=[Quiet()])[1].outcome.kind == "finished"
    with pytest.raises(InputError, match="observer Half has no began, validated"):
        trained(observers=[Half()])


def test_a_workspace_that_is_none(tmp_path):
    (tmp_path / "runs.db").write_text("something else, and quite long")
    with pytest.raises(InputError, match="is not a workspace"):
        trained(workspace=tmp_path / "runs.db")


@pytest.mark.parametrize(
    "options, told",
    [
        ({"data": 5}, "data is a int: it is to be files, arrays or batches"),
        ({"data": [(1, 2)]}, "a batch of the data is a tuple; it is to be arrays by name"),
        ({"batch": 0}, "batch is 0; it can be a whole number from 1"),
        ({"epochs": -1}, "epochs is -1"),
        ({"validate": 1}, "validate is 1; it can be data, or a share of it, between 0 and 1"),
        ({"schedule": "step"}, "schedule is 'step'; it can be constant, linear, cosine or step=N"),
    ],
)
def test_arguments_that_say_nothing(options, told):
    with pytest.raises(InputError, match=re.escape(told)):
        trained(**options)


def test_a_terminal_shows_which_kernel_of_how_many_is_compiled(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    class Compiles(Observer):
        def stepped(self, trainer, metrics):
            if trainer.step == 1:
                monkeypatch.setattr(Compiler, "compiled", 4)
                monkeypatch.setattr(Compiler, "expected", 12)
                monkeypatch.setattr(Compiler, "before", 0)
                assert Compiler.on_compile is not None
                Compiler.on_compile("mul")

    monkeypatch.setenv("TERM", "xterm")
    before, seen = Compiler.on_compile, Terminal()
    trained(epochs=1, observers=[Progress(seen), Compiles()])
    assert "compiling kernel 5 of 12: mul (once" in seen.getvalue()
    assert Compiler.on_compile is before
