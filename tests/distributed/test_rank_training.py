"""Training whose batches several ranks share."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path

import diverging_ranks
import numpy as np
import pytest
from waiting import wait_until

import opstep
from opstep.api.ranks import Part as Run
from opstep.api.ranks import check_alike
from opstep.distributed.starting import start
from opstep.optim.parallel import data_axis
from opstep.runtime.ir.diagnostics import OpstepError
from opstep.runtime.ir.errors import InputError, SettingError
from opstep.runtime.ir.mesh import Mesh
from opstep.runtime.ir.printer import print_module
from opstep.training.data import Batches, Dataset, Part, Position
from opstep.training.validation import Validation

ROOT = Path(__file__).resolve().parents[2]
TRAIN = [sys.executable, "-m", "opstep", "train"]

NET = """mesh data: 2

param w: f32[10, 48] = normal(std=0.1)
param b: f32[10] = zeros()
param half: f16[10] = ones()
state seen: f32[48] = zeros()
state count: i32[] = 0

graph loss(x: f32[N, 48], label: i32[N]) -> f32[], i64[] {
  m = mean(x, axes=[0], keepdims=false)
  seen <- m
  c = add(count, 1)
  count <- c
  h = linear(x, w, b)
  wide = cast(half, dtype=f32)
  y = mul(h, wide)
  own = softmax_cross_entropy(y, label)
  best = argmax(y, axis=1)
  right = equal(best, label)
  hits = sum(right)
  return own, hits
}
"""


def data(rows: int = 44) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    x = rng.normal(size=(rows, 48)).astype(np.float32)
    return {"x": x, "label": rng.integers(0, 10, rows).astype(np.int32)}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    Path("net.opg").write_text(NET)
    held = {f"held_{n}": a for n, a in data(10).items()}
    np.savez("data.npz", **data(), **held)
    return tmp_path


def program(**how):
    return opstep.loads(NET, "net.opg", **how)


# --- the text of a step ---------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "adafactor"])
def test_one_rank_has_the_bits_of_the_plain_program(optimizer):
    plain = program().with_optimizer("loss", optimizer, clip_norm=1.0)
    shared = program().with_optimizer(
        "loss", optimizer, clip_norm=1.0, data_parallel=True, bucket="64"
    )
    assert "all_reduce" in print_module(shared.module)
    for _ in range(3):
        a, b = (p.run("loss_step", data()) for p in (plain, shared))
        assert [o.tobytes() for o in a.outputs] == [o.tobytes() for o in b.outputs]
        assert a.names == b.names
    for name, value in plain.params.items():
        assert value.tobytes() == shared.params[name].tobytes(), name


@pytest.mark.parametrize(("size", "sums"), [(500, [2 * 500**2, 2 * 500**2]), (512, [512**2] * 4)])
def test_gradients_go_as_soon_as_they_are_there(size, sums):
    """Those of a mebibyte alone, smaller ones in buckets: the first of a mebibyte."""
    lines = "\n".join(f"  h{k + 1} = linear(h{k}, w{k})" for k in range(4))
    params = "".join(f"param w{k}: f32[{size}, {size}] = normal(std=0.1)\n" for k in range(4))
    head = f"graph loss(h0: f32[N, {size}]) -> f32[] {{"
    text = f"{params}{head}\n{lines}\n  l = mean(h4)\n  return l\n}}\n"
    step = opstep.loads(text, ranks=4).with_optimizer("loss", "sgd", data_parallel=True)
    plan = step.plan("loss_step", symbols={"N": 64}, fuse=True)
    steps = [
        (plan.steps[i.step].op.name, i.stream) for i in plan.instructions if hasattr(i, "step")
    ]
    talks = {s for name, s in steps if name == "all_reduce"}
    assert len(talks) == 1  # a stream of its own
    assert not talks & {s for name, s in steps if name == "matmul"}
    of_gradients = [k for k, s in enumerate(plan.steps) if s.op.name == "all_reduce"][1:]
    products = [k for k, s in enumerate(plan.steps) if s.op.name == "matmul"]
    assert of_gradients[0] < products[-1]  # the backward pass goes on
    assert of_gradients[-1] < len(plan.steps) - plan.commits  # and no update is made before
    assert [plan.steps[k].operand_types[0].size for k in of_gradients] == sums


def test_what_is_asked_for_in_vain():
    with pytest.raises(InputError, match="the mesh has axes data, and none is called model"):
        program().with_optimizer("loss", data_parallel="model")
    with pytest.raises(SettingError, match="bucket"):
        program().with_optimizer("loss", data_parallel=True, bucket="much")
    with pytest.raises(InputError, match=r"along which axis of the mesh \(a: 2, b: 2\)"):
        data_axis(Mesh((("a", 2), ("b", 2)), True))
    assert data_axis(Mesh((("model", 2), ("dp", 2)), True)).axes == ("dp",)


def test_a_step_under_which_ranks_would_part():
    text = """param w: f32[4] = zeros()
graph step(x: f32[4]) -> f32[] {
  l = sum(x)
  new = sub(w, x)
  w <- new
  return l
}
"""
    for given, parts in ((text, True), (text.replace("sub(w, x)", "all_reduce(x)"), False)):
        p = opstep.loads(given, "step.opg", ranks=2)
        run = Run(p, "step", p.input_types(p.graph("step"), {}))
        if parts:
            with pytest.raises(OpstepError, match=r"step.opg:5:3: .*a w of its own"):
                check_alike(run, ["ranks"])
        else:
            check_alike(run, ["ranks"])


# --- who has what ---------------------------------------------------------------------------------


def test_parts_make_up_the_batches():
    dataset = Dataset(data())
    whole = Batches(dataset, 8, seed=3)
    parts = [Batches(dataset, 8, seed=3, part=Part(k, 2)) for k in range(2)]
    for (at, batch), *own in zip(
        whole.rest(Position()), *(p.rest(Position()) for p in parts), strict=True
    ):
        assert {a for a, _ in own} == {at}
        for name, array in batch.items():
            assert np.array_equal(array, np.concatenate([rows[name] for _, rows in own]))
    assert [len(p.rows(Position())) for p in parts] == [4, 4]


@pytest.mark.parametrize(
    "size, drop, message",
    [
        (9, False, "2 ranks cannot share batches of 9 rows evenly"),
        (10, False, None),
        (14, True, None),
        (6, False, None),
    ],
)
def test_batches_that_cannot_be_shared(size, drop, message):
    dataset = Dataset(data())
    if message is None:
        Batches(dataset, size, drop_last=drop, part=Part(1, 2))
        return
    with pytest.raises(InputError, match=message):
        Batches(dataset, size, drop_last=drop, part=Part(1, 2))


def test_a_last_batch_that_cannot_be_shared():
    message = "4 ranks cannot share the last batch .* of the 46 rows of the data, 6 are left"
    with pytest.raises(InputError, match=message) as caught:
        Batches(Dataset(data(46)), 8, part=Part(0, 4))
    assert "drop_last=True leaves it out" in str(caught.value)


def test_validation_in_turn_has_the_figures_of_one():
    p = opstep.loads(
        "graph loss(x: f32[N, 48], label: i32[N]) -> f32[] {\n  l = mean(x)\n  return l\n}\n"
    )
    settings = opstep.api.settings.RunSettings()
    whole = Validation({"loss": "loss"}, Batches(Dataset(data()), 8, None)).run(p, settings)
    told = []
    for rank in range(3):
        one = Validation({"loss": "loss"}, Batches(Dataset(data()), 8, None))
        one.share(Part(rank, 3), lambda own: told.append(own) or [own])
        one.run(p, settings)
    assert [len(own) for own in told] == [2, 2, 2]
    last = Validation({"loss": "loss"}, Batches(Dataset(data()), 8, None))
    last.share(Part(0, 3), lambda own: told)
    assert last.run(p, settings) == whole


# --- ranks ----------------------------------------------------------------------------------------


def serial(steps: int, batch: int, ranks: int = 2, lr: float = 0.1, momentum: float = 0.9):
    """Params and metrics of SGD by the rule, its sums in the order of the ranks."""
    p = program().with_grad("loss", ["w", "b", "half"])
    m = {n: np.zeros(p.params[n].shape, np.float32) for n in ("w", "b", "half")}
    master = p.params["half"].astype(np.float32)
    batches = Batches(Dataset(data()), batch, seed=0, drop_last=True)
    losses, f32 = [], np.float32
    for _, rows in [*batches.rest(Position())][:steps]:
        own = []
        before = {n: p.params[n] for n in ("seen", "count")}
        for part in (Part(k, ranks) for k in range(ranks)):
            for name, value in before.items():
                p.params[name] = value
            run = p.run("loss_grad", {n: part.of(a) for n, a in rows.items()})
            own.append([*run.outputs, p.params["seen"]])
        loss, hits, *gradients, seen = (
            add_up([o[k] for o in own], k != 1) for k in range(len(own[0]))
        )
        p.params["seen"] = seen
        losses.append((float(loss), int(hits)))
        for name, g in zip(("w", "b", "half"), gradients, strict=True):
            m[name] = m[name] * f32(momentum) + g.astype(f32)
            change = m[name] * f32(lr)
            if name == "half":
                master = master - change
                p.params[name] = master.astype(np.float16)
            else:
                p.params[name] = p.params[name] - change
    return dict(p.params), losses


def add_up(values: list[np.ndarray], mean: bool) -> np.ndarray:
    """In the order of the ranks; halves in f32, rounded once."""
    dtype = values[0].dtype
    wide = np.dtype(np.float32) if dtype == np.float16 else dtype
    total = values[0].astype(wide)
    for value in values[1:]:
        total = total + value.astype(wide)
    return (total / wide.type(len(values)) if mean else total).astype(dtype)


@pytest.mark.slow
def test_two_ranks_have_the_bits_of_a_serial_oracle(folder):
    command = [
        *TRAIN, "net.opg", "-d", "data.npz", "--ranks", "2", "--batch", "8", "--drop-last",
        "--optimizer", "sgd", "--lr", "0.1", "--set", "momentum=0.9", "--bucket", "1K",
        "--validate", "held", "--save", "out.safetensors", "-w", "runs.db", "--json",
    ]  # fmt: skip
    ran = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert ran.returncode == 0, ran.stderr
    params, losses = serial(5, 8)
    from safetensors.numpy import load_file

    saved = load_file("out.safetensors")
    for name, value in params.items():
        assert saved[name].tobytes() == value.tobytes(), name
    told = json.loads(ran.stdout)
    assert (told["metrics"]["loss"], told["metrics"]["hits"]) == losses[-1]
    held = Batches(Dataset(data(10)), 8, None)
    plain = program()
    for name, value in params.items():
        plain.params[name] = value
    figures = Validation({"loss": "loss"}, held).run(plain, opstep.api.settings.RunSettings())
    assert told["validation"]["loss"] == figures["loss"]
    assert metrics() == [loss for loss, _ in losses]


SCRIPT = '''
import json, os, sys
import numpy as np
import opstep
from opstep.distributed.agreement import agree_on_values
from opstep.distributed.gloo import joined
from opstep.distributed.place import place_in
from opstep.runtime.ir.diagnostics import OpstepError

place = place_in(os.environ)
found = {}

ASSERTS = """state w: f32[4] = zeros()
state early: f32[] = 0.0
graph main(bad: i32[]) -> f32[4] {
  new = add(w, 1.0)
  total = all_reduce(new)
  w <- total
  count()
  r = rank()
  fine = not_equal(r, bad)
  assert fine, "this one"
  return total
}
graph count() {
  more = add(early, 1.0)
  early <- more
}
"""

def attempt(name, do):
    try:
        do()
        found[name] = ""
    except OpstepError as error:
        found[name] = str(error)

with joined(place) as transport:
    program = opstep.loads(ASSERTS, "asserts.opg", ranks=2)
    for mode in ("async", "debug"):
        for k, bad in enumerate((-1, 1, 0, -1)):
            attempt((name := f"{mode} {k}"), lambda: program.run("main", {"bad": bad}, mode=mode))
            w, early = program.params["w"], program.params["early"]
            found[name] = [found[name], *w.tolist(), float(early)]
        del program.params["w"], program.params["early"]
    agree_on_values(transport.world, program)
    program.params["w"] = np.full(4, place.rank, np.float32)
    attempt("weights", lambda: agree_on_values(transport.world, program))
json.dump(found, open(f"found{place.rank}.json", "w"))
'''


@pytest.mark.slow
def test_a_step_takes_effect_on_all_ranks_or_on_none(folder):
    Path("script.py").write_text(SCRIPT)
    start([sys.executable, "script.py"], 2)
    found = [json.loads(Path(f"found{r}.json").read_text()) for r in range(2)]
    for r, one in enumerate(found):
        for mode in ("async", "debug"):
            assert one[f"{mode} 0"] == ["", *[2.0] * 4, 1.0]
            for k, bad in ((1, 1), (2, 0)):
                message, *values = one[f"{mode} {k}"]
                assert values == [2.0] * 4 + [1.0]  # of the step before
                if r == bad:
                    assert "asserts.opg:10:10: error: assert failed: this one" in message
                else:
                    assert f"rank {bad} failed an assert, so no rank keeps" in message
            assert one[f"{mode} 3"] == ["", *[6.0] * 4, 2.0]
    for one in found:
        assert "rank 1 begins with another w than rank 0" in one["weights"]


@pytest.mark.slow
def test_a_ctrl_c_ends_all_ranks_behind_one_step(folder):
    command = [
        *TRAIN, "net.opg", "-d", "data.npz", "--ranks", "2", "--batch", "4", "--epochs", "1000000",
        "-w", "runs.db", "--save", "out.safetensors", "--checkpoint-every", "1000000",
    ]  # fmt: skip
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    wait_until(metrics)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=300)
    assert process.returncode == 130, told
    assert "saved out.safetensors" in told
    assert "Traceback" not in told


def metrics() -> list[float]:
    """The losses in the workspace, by step."""
    if not Path("runs.db").exists():
        return []
    with closing(sqlite3.connect("file:runs.db?mode=ro", uri=True)) as db, suppress(sqlite3.Error):
        rows = db.execute("select value from metrics where name = 'loss' order by step")
        return [value for (value,) in rows]
    return []


@pytest.mark.slow
def test_a_hunt_names_the_rank_and_the_row(folder):
    diverging_ranks.hunted(folder)


@pytest.mark.slow
def test_a_condition_that_holds_on_one_rank_ends_all(folder):
    diverging_ranks.watched(folder)
