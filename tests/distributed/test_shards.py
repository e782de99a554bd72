"""Params and states of which each rank has a part; optimizers whose states ranks share out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import opstep
from opstep.api.rank_debugging import debug_ranks
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.printer import print_module
from opstep.training.data import Batches, Dataset, Position

ROOT = Path(__file__).resolve().parents[2]
OPSTEP = [sys.executable, "-m", "opstep"]

LINEAR = """mesh model: 2

param w: f32[8, 6] over model = normal(std=0.1)
state s: f32[8] over model axis 0 = zeros()

graph main(x: f32[3, 6]) -> f32[3, 8] {
  y = linear(x, w)
  z = all_gather(y, axis=1, over=model)
  t = add(s, 1.0)
  s <- t
  return z
}
"""

# Two layers as Megatron-LM splits them (Shoeybi et al. 2019, arXiv:1909.08053), behind a param that
# all ranks have, whose gradient is a sum over their shards.
TENSOR_PARALLEL = """mesh data: 1, model: 1

param g: f32[48] = ones()
param w: f32[8, 48] over model = normal(std=0.1)
param b: f32[10] = zeros()
param v: f32[10, 8] over model axis 1 = normal(std=0.1)

graph loss(x: f32[N, 48], label: i32[N]) -> f32[] {
  n = mul(x, g)
  h = linear(n, w)
  r = relu(h)
  part = linear(r, v)
  all = all_reduce(part, over=model)
  y = add(all, b)
  own = softmax_cross_entropy(y, label)
  return own
}
"""

ROWS, BATCH, LR = 24, 8, 0.5


def data() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    x = rng.normal(size=(ROWS, 48)).astype(np.float32)
    return {"x": x, "label": rng.integers(0, 10, ROWS).astype(np.int32)}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    Path("linear.opg").write_text(LINEAR)
    Path("net.opg").write_text(TENSOR_PARALLEL)
    np.savez("data.npz", **data())
    return tmp_path


def ran(*arguments: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    command = [*OPSTEP, *map(str, arguments)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert found.returncode == code, found.stderr
    assert "Traceback" not in found.stderr
    return found


def train(save: str, *arguments: object, data: int = 1, model: int = 1) -> dict[str, np.ndarray]:
    """What training on so many ranks saves."""
    mesh = (f"--mesh=data={data}", f"--mesh=model={model}", "--ranks", data * model)
    given = ("-d", "data.npz", "--batch", BATCH, "--lr", LR, "--save", save)
    ran("train", "net.opg", *given, *mesh, *arguments)
    return load_file(save)


# --- the declaration ------------------------------------------------------------------------------


def test_a_rank_has_its_part_of_what_is_drawn_as_a_whole():
    whole = opstep.loads(LINEAR, ranks=1).params["w"]
    assert whole.shape == (8, 6)
    for ranks in (2, 4):
        p = opstep.loads(LINEAR, ranks=ranks, mesh={"model": ranks})
        assert str(p.verified.tensors["w"].type) == f"f32[{8 // ranks}, 6]"
        x = np.random.default_rng(1).normal(size=(3, 6)).astype(np.float32)
        debugger = debug_ranks(p, "main", {"x": x}, stop_at_end=True)
        debugger.start()
        for member in debugger.group.members:
            found = member.evaluate("joined(w)", member.stack()[0])
            assert np.asarray(found).tobytes() == whole.tobytes()
            parts = np.asarray(member.evaluate("ranks(w)", member.stack()[0]))
            assert np.array_equal(parts, whole.reshape(ranks, 8 // ranks, 6))


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_results_and_files_do_not_depend_on_the_number_of_ranks(folder, ranks):
    given = np.random.default_rng(3).normal(size=(8, 6)).astype(np.float32)
    save_file({"w": given, "s": np.arange(8, dtype=np.float32)}, "before.safetensors")
    np.save("x.npy", np.ones((3, 6), np.float32))
    for n in (1, ranks):
        ran("run", "linear.opg", "--ranks", n, f"--mesh=model={n}", "-i", "x=x.npy",
            "--params", "before.safetensors", "--save-params", f"after{n}.safetensors",
            "-o", f"out{n}.npz")  # fmt: skip
    one, many = load_file("after1.safetensors"), load_file(f"after{ranks}.safetensors")
    assert one["w"].tobytes() == many["w"].tobytes() == given.tobytes()
    assert one["s"].tolist() == many["s"].tolist() == (np.arange(8) + 1.0).tolist()
    results = [np.load(f"out{n}.npz")["z"] for n in (1, ranks)]
    assert results[0].tobytes() == results[1].tobytes()


@pytest.mark.slow
@pytest.mark.parametrize(
    "values, message",
    [
        ({"w": np.ones((4, 6), np.float32)}, "has the shape [4, 6], and the whole tensor [8, 6]"),
        ({}, "1 of the program's params are not in it: w"),
        ({"w": np.ones((8, 6), np.float16)}, "param w has elements of type f16, not f32"),
    ],
)
def test_files_that_do_not_fit(folder, values, message):
    save_file({**values, "s": np.zeros(8, np.float32)}, "bad.safetensors")
    found = ran("run", "linear.opg", "--ranks", 2, "-i", "random", "--params", "bad.safetensors",
                code=2)  # fmt: skip
    assert message in found.stderr
    assert found.stderr.count(message) == 1  # of all ranks


def test_meshes_that_do_not_fit(folder):
    found = ran("run", "linear.opg", "--ranks", 3, "--mesh=model=3", "-i", "random", code=1)
    assert "3 ranks along model cannot share axis 0 of f32[8, 6] evenly" in found.stderr
    found = ran("run", "linear.opg", "--ranks", 2, "--mesh=model=4", "-i", "random", code=2)
    assert "the mesh (model: 4) is of 4 ranks, not 2" in found.stderr


# --- training -------------------------------------------------------------------------------------


def oracle(momentum: float = 0.9) -> dict[str, np.ndarray]:
    """Params after an epoch of SGD on one device, by the rule, in f64."""
    p = opstep.loads(TENSOR_PARALLEL)
    params = {n: p.params[n].astype(np.float64) for n in ("g", "w", "b", "v")}
    before = {n: np.zeros_like(a) for n, a in params.items()}
    batches = Batches(Dataset(data()), BATCH, seed=0)
    for _, rows in batches.rest(Position()):
        x, label = rows["x"].astype(np.float64), rows["label"]
        g, w, b, v = (params[n] for n in ("g", "w", "b", "v"))
        h = (x * g) @ w.T
        r = np.maximum(h, 0)
        y = r @ v.T + b
        e = np.exp(y - y.max(1, keepdims=True))
        d_y = e / e.sum(1, keepdims=True)
        d_y[np.arange(len(x)), label] -= 1
        d_y /= len(x)
        d_h = (d_y @ v) * (h > 0)
        grads = {
            "g": ((d_h @ w) * x).sum(0), "w": d_h.T @ (x * g), "b": d_y.sum(0), "v": d_y.T @ r,
        }  # fmt: skip
        for n, grad in grads.items():
            before[n] = momentum * before[n] + grad
            params[n] = params[n] - LR * before[n]
    return params


@pytest.mark.slow
@pytest.mark.parametrize("how", [(), ("--shard-optimizer",)], ids=["whole", "shared"])
@pytest.mark.parametrize("data, model", [(1, 2), (2, 2)])
def test_tensor_parallel_training_is_that_of_one_device(folder, data, model, how):
    arguments = ("--optimizer", "sgd", "--set", "momentum=0.9", *how)
    saved = train("out.safetensors", *arguments, data=data, model=model)
    for name, value in oracle().items():
        assert np.abs(saved[name] - value).max() <= 2e-6 * np.abs(value).max(), name


@pytest.mark.slow
def test_sharing_out_the_states_changes_no_bit(folder):
    plain = train("plain.safetensors", data=2)
    shared = train("shared.safetensors", "--shard-optimizer", data=2)
    assert plain.keys() == shared.keys()
    for name, value in plain.items():
        assert shared[name].tobytes() == value.tobytes(), name


def test_one_gradient_is_that_of_a_whole_and_of_a_shard():
    """Each param's is added up over the ranks that have the same of it; both are means of four."""
    program = opstep.loads(
        "mesh data: 2, model: 2\n"
        "param a: f32[4] = ones()\n"
        "param b: f32[8] over model = ones()\n"
        "graph loss(x: f32[4]) -> f32[] {\n"
        "  w = add(a, b)\n  y = mul(w, x)\n  p = sum(y)\n"
        "  s = all_reduce(p, over=model)\n  return s\n}\n",
        ranks=4,
    )
    text = print_module(program.with_optimizer("loss", "sgd").module)
    for line in (
        "all_d_a = all_reduce(d_a, over=[data, model])\n",
        "all_d_a_1 = all_reduce(d_a, over=data)\n",
        "ranks = extent(dtype=f32, over=[data, model])\n",
        "mean_d_a = div(all_d_a, ranks)\n",
        "mean_d_a_1 = div(all_d_a_1, ranks)\n",
        "a_1 = sgd_1d(a, mean_d_a, rate)\n",
        "b_1 = sgd_1d(b, mean_d_a_1, rate)\n",
    ):
        assert line in text


def test_a_rank_keeps_its_part_of_the_states_only():
    p = opstep.loads(TENSOR_PARALLEL, ranks=4, mesh={"data": 2, "model": 2})
    shared = p.with_optimizer("loss", "adamw", shard_optimizer=True)
    own = {n: str(d.type) for n, d in shared.verified.tensors.items() if n.endswith((".m", ".v"))}
    assert own == {
        "g.m": "f32[24]", "g.v": "f32[24]", "b.m": "f32[5]", "b.v": "f32[5]",
        "w.m": "f32[4, 48]", "w.v": "f32[4, 48]", "v.m": "f32[10, 4]", "v.v": "f32[10, 4]",
    }  # fmt: skip
    text = print_module(shared.module)
    assert "state g.m: f32[48] over data = zeros()" in text
    assert "state v.m: f32[10, 8] over model axis 1 = zeros()" in text


def test_an_optimizer_that_needs_whole_params_is_refused():
    p = opstep.loads(TENSOR_PARALLEL, ranks=2, mesh={"data": 2, "model": 1})
    with pytest.raises(InputError, match="shard_optimizer: adafactor updates a param by all of"):
        p.with_optimizer("loss", "adafactor", shard_optimizer=True)
    p = opstep.loads(TENSOR_PARALLEL, ranks=2, mesh={"data": 1, "model": 2})
    with pytest.raises(InputError, match="param w is declared as shards: adafactor"):
        p.with_optimizer("loss", "adafactor")


@pytest.mark.slow
@pytest.mark.parametrize("later", [1, 4])
def test_training_goes_on_with_another_number_of_ranks(folder, later):
    adamw = ("--optimizer", "adamw", "--shard-optimizer", "-w", "runs.db")
    train("half.safetensors", *adamw, "--epochs", 1, data=2)
    found = train(
        "after.safetensors", *adamw, "--epochs", 2, "--resume", "last",
        data=min(later, 2), model=max(later // 2, 1),
    )  # fmt: skip
    whole = train("whole.safetensors", "--optimizer", "adamw", "--epochs", 2)
    assert int(found["step"]) == int(whole["step"]) == 2 * ROWS // BATCH
    for name, value in whole.items():
        assert np.abs(found[name] - value).max() <= 1e-4 * np.abs(value).max(), name
