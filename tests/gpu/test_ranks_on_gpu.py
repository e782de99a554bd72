"""Ranks on GPUs, over NCCL: beside ranks on the CPU, and what becomes of faults."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import diverging_ranks
import numpy as np
import pytest
import rank_scenes
from rank_kills import children, kills
from waiting import runs, wait_until

import opstep
import opstep.kernels
from opstep.runtime.device.cuda.driver.driver import driver
from opstep.runtime.ir.op import OPS, complete
from opstep.runtime.ir.types import DTYPES

ROOT = Path(__file__).resolve().parents[2]
SHAPE = (4, 4)
GPUS = ("--device", "cuda")

CALLS = [
    *[f'all_reduce(x, reduction="{r}")' for r in ("sum", "mean", "max", "min", "prod")],
    *[f'reduce_scatter(x, axis={a}, reduction="{r}")' for a in (0, 1) for r in ("sum", "max")],
    *[f"all_gather(x, axis={a})" for a in (0, 1)],
    *[f"all_to_all(x, split={a}, concat={b})" for a in (0, 1) for b in (0, 1)],
    "broadcast_from(x, root=1)",
    "barrier(x)",
    "rank()",
]


@pytest.fixture(autouse=True, scope="module")
def gpus() -> int:
    if (count := driver().cuDeviceGetCount()) < 2:
        pytest.skip("ranks need two GPUs")
    return count


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *filter(None, sys.path)]))
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def opstep_ranks(command: str, *args, **how) -> subprocess.Popen[str]:
    line = [sys.executable, "-m", "opstep", command, *map(str, args)]
    return subprocess.Popen(line, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **how)


def ended(command: str, *args, **how) -> tuple[int, str, str]:
    process = opstep_ranks(command, *args, **how)
    out, err = process.communicate(timeout=400)
    return process.returncode, out, err


def outputs(*args, ranks: int = 2) -> list[dict]:
    code, out, err = ended("run", *args, "--ranks", ranks, "--json")
    assert code == 0, err
    return json.loads(out)["outputs"]


def of_all(dtype: str, ranks: int) -> tuple[str, dict[str, str]]:
    """A program of all collectives that there are for a type, and the calls by their results."""
    integer = DTYPES[dtype].is_integer
    calls = {f"y{k}": c for k, c in enumerate(CALLS) if not (integer and "mean" in c)}
    types = []
    for call in calls.values():
        n, m = SHAPE
        if "reduce_scatter" in call:
            n, m = (n // ranks, m) if "axis=0" in call else (n, m // ranks)
        if "all_gather" in call:
            n, m = (ranks * n, m) if "axis=0" in call else (n, ranks * m)
        if "all_to_all" in call:
            n, m = (n // ranks, m) if "split=0" in call else (n, m // ranks)
            n, m = (ranks * n, m) if "concat=0" in call else (n, ranks * m)
        types.append("i32[]" if call == "rank()" else f"{dtype}[{n}, {m}]")
    lines = [f"  {name} = {call}" for name, call in calls.items()]
    shape = f"[{SHAPE[0]}, {SHAPE[1]}]"
    head = (
        f"graph main(given: {'f32' if dtype == 'bf16' else dtype}{shape}) -> {', '.join(types)} {{"
    )
    lines.insert(0, f"  x = cast(given, dtype={dtype})")
    return "\n".join([head, *lines, f"  return {', '.join(calls)}", "}", ""]), calls


CAPTURED = ("--steps", 3)
WAYS = [("f32", more) for more in ((), CAPTURED, ("--mode", "debug"), ("--chaos", 5))]
WAYS += [(dtype, CAPTURED) for dtype in ("f64", "f16", "bf16", "i64", "i32", "i16", "i8", "u8")]


@pytest.mark.parametrize("dtype, more", WAYS, ids=str)
def test_every_collective_has_the_bits_of_the_cpu(folder, dtype, more):
    calls, given = program_of_all(folder, dtype, 2)
    cpu, gpu = outputs(*given), outputs(*given, *GPUS, *more)
    for found, expected in zip(gpu, cpu, strict=True):
        told = f"{calls[found['name']]}: {found}"
        assert found.get("rank", 0) == expected.get("rank", 0), told
        assert found["values"] == expected["values"], told


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16", "i32"])
def test_every_collective_on_four_ranks(folder, gpus, dtype):
    """Sums of floats are in NCCL's order, the same in each run."""
    if gpus < 4:
        pytest.skip("this needs four GPUs")
    calls, given = program_of_all(folder, dtype, 4)
    cpu = outputs(*given, ranks=4)
    gpu, again = (outputs(*given, *GPUS, "--steps", 2, ranks=4) for _ in range(2))
    assert gpu == again
    by_rank = {(one["name"], one.get("rank", 0)): one["values"] for one in gpu}
    for one in cpu:
        call = calls[one["name"]]
        found = by_rank.get((one["name"], one.get("rank", 0)), by_rank[one["name"], 0])
        if dtype in ("f32", "f64") and any(word in call for word in ("sum", "mean", "prod")):
            near = 1e-6 if dtype == "f32" else 1e-15
            pair = [np.array(values, float) for values in (found, one["values"])]
            np.testing.assert_allclose(*pair, rtol=near, atol=20 * near, err_msg=call)
        else:
            assert found == one["values"], call


def program_of_all(folder, dtype: str, ranks: int) -> tuple[dict[str, str], tuple[str, ...]]:
    """Writes it with inputs of each rank; the calls by their results, and what runs it."""
    text, calls = of_all(dtype, ranks)
    (folder / "all.opg").write_text(text)
    rng, kind = np.random.default_rng(3), DTYPES[dtype]
    for rank in range(ranks):
        x = rng.uniform(-9, 9, SHAPE) if kind.is_float else rng.integers(0, 100, SHAPE)
        if kind.is_float:
            x[0, rank] = np.nan
            x[1, rank] = np.inf
        array = x.astype(np.float32 if dtype == "bf16" else kind.numpy)
        np.save(f"x{rank}.npy", array)
    return calls, ("all.opg", "-i", "given=x{rank}.npy")


def test_groups_of_a_mesh(folder):
    """With one rank along an axis nothing is sent."""
    (folder / "mesh.opg").write_text(
        "mesh data: 2, model: 1\n"
        "graph main(x: f32[4]) -> f32[4], f32[4], i32[] {\n"
        "  a = all_reduce(x, over=model)\n"
        "  b = all_reduce(x, over=data)\n"
        "  r = rank(over=data)\n"
        "  return a, b, r\n}\n"
    )
    for rank in range(2):
        np.save(f"x{rank}.npy", np.arange(4, dtype=np.float32) + 10 * rank)
    given = ("mesh.opg", "-i", "x=x{rank}.npy")
    assert outputs(*given, "--device", "cuda") == outputs(*given)


THERE_AND_BACK = """mesh data: 2

graph main(x: f32[1000]) -> f32[1000], f32[1000] {
  r = rank()
  first = equal(r, 0)
  got = cond(first, x, then=gives, else=takes)
  y, k = while(got, 0, test=more, body=turn)
  return got, y
}

graph gives(x: f32[1000]) -> f32[1000] {
  sent = send(x, to=1)
  y = recv(sent, source=1)
  return y
}

graph takes(x: f32[1000]) -> f32[1000] {
  got = recv(x, source=0)
  twice = mul(got, 2.0)
  y = send(twice, to=0)
  return y
}

graph more(x: f32[1000], k: i32[]) -> bool[] {
  c = less(k, 9)
  return c
}

graph turn(x: f32[1000], k: i32[]) -> f32[1000], i32[] {
  y = all_reduce(x, reduction="mean")
  m = add(k, 1)
  return y, m
}
"""


def test_control_flow_and_what_goes_from_one_to_another(folder):
    (folder / "pass.opg").write_text(THERE_AND_BACK)
    x = np.random.default_rng(0).standard_normal(1000, np.float32)
    np.save("x.npy", x)
    found = ended(
        "run", "pass.opg", "-i", "x=x.npy", "--ranks", 2, "--device", "cuda", "-o", "y.npz"
    )
    assert found[0] == 0, found[2]
    with np.load("y.npz") as results:
        assert results["got"].tobytes() == results["y"].tobytes() == (2 * x).tobytes()


NET = """mesh data: 2

param w: f32[32, 48] = normal(std=0.1)
param b: f32[32] = zeros()
param v: f32[10, 32] = normal(std=0.1)
state seen: f32[48] = zeros()
state count: i32[] = 0

graph loss(x: f32[N, 48], label: i32[N]) -> f32[], i64[] {
  m = mean(x, axes=[0], keepdims=false)
  seen <- m
  c = add(count, 1)
  count <- c
  h = linear(x, w, b)
  r = relu(h)
  y = linear(r, v)
  own = softmax_cross_entropy(y, label)
  best = argmax(y, axis=1)
  right = equal(best, label)
  hits = sum(right)
  return own, hits
}
"""


@pytest.fixture
def data(folder):
    rng = np.random.default_rng(7)
    (folder / "net.opg").write_text(NET)
    x = rng.normal(size=(64, 48)).astype(np.float32)
    np.savez("data.npz", x=x, label=rng.integers(0, 10, 64).astype(np.int32))
    return folder


def trained(name: str, *more) -> dict[str, np.ndarray]:
    from safetensors.numpy import load_file

    how = ("-d", "data.npz", "--batch", 16, "--epochs", 3, "--optimizer", "adamw", "--json")
    code, _, err = ended("train", "net.opg", *how, "--save", f"{name}.safetensors", *more)
    assert code == 0, err
    return load_file(f"{name}.safetensors")


def test_training_is_that_of_one_device(data):
    gpus = ("--ranks", 2, "--device", "cuda")
    one, cpus = trained("one"), trained("cpus", "--ranks", 2)
    found = trained("gpus", *gpus)
    for name, value in found.items():
        for other in (one, cpus):
            np.testing.assert_allclose(value, other[name], rtol=2e-3, atol=2e-5)
    again, sharded = trained("again", *gpus), trained("sharded", *gpus, "--shard-optimizer")
    for name, value in found.items():
        assert again[name].tobytes() == value.tobytes(), name
        if name in ("w", "b", "v"):
            assert sharded[name].tobytes() == value.tobytes(), name


def test_shards_of_a_param(folder):
    (folder / "shards.opg").write_text(
        "mesh model: 2\n"
        "param up: f32[64, 16] over model = normal(std=0.1)\n"
        "param down: f32[10, 64] over model axis 1 = normal(std=0.1)\n"
        "graph main(x: f32[8, 16]) -> f32[8, 10] {\n"
        "  h = linear(x, up)\n  r = relu(h)\n  part = linear(r, down)\n"
        "  y = all_reduce(part, over=model)\n  return y\n}\n"
    )
    np.save("x.npy", np.random.default_rng(0).standard_normal((8, 16), np.float32))
    for name, more in (("one", ()), ("two", ("--ranks", 2, "--device", "cuda"))):
        mesh = ("--mesh", "model=1") if name == "one" else ()
        line = ("shards.opg", "-i", "x=x.npy", "-o", f"{name}.npy", *mesh, *more)
        code, _, err = ended("run", *line)
        assert code == 0, err
    np.testing.assert_allclose(np.load("two.npy"), np.load("one.npy"), rtol=1e-5, atol=1e-5)


def test_a_step_takes_effect_on_all_ranks_or_on_none(folder):
    (folder / "step.opg").write_text(
        "state w: f32[4] = zeros()\n"
        "graph main(x: f32[4]) -> f32[4] {\n"
        "  s = all_reduce(x)\n"
        "  r = rank()\n"
        "  before = add(w, s)\n"
        "  w <- before\n"
        "  high = max(before, axes=[0], keepdims=false)\n"
        "  far = less(high, 5.0)\n"
        "  other = equal(r, 0)\n"
        "  fine = logical_or(far, other)\n"
        '  assert fine, "too far"\n'
        "  return before\n}\n"
    )
    given = ("step.opg", "-i", "ones", "--ranks", 2, "--device", "cuda")
    code, out, err = ended("run", *given, "--steps", 2, "--json", "--save-params", "w.safetensors")
    assert code == 0, err
    assert json.loads(out)["outputs"][0]["values"] == [4.0] * 4
    code, _, err = ended("run", *given, "--steps", 3)
    assert code == 1
    assert "rank 1 failed an assert, so no rank keeps what this step did" in err
    assert "too far" in err


def test_a_hunt_names_the_rank_where_a_nan_was_born(folder):
    rank_scenes.found_by_a_hunt(folder, *GPUS)


def test_a_nan_on_one_rank_in_debug_mode(folder):
    rank_scenes.nan_in_debug_mode(folder, *GPUS)


def test_what_cannot_be_told_beforehand_is_checked_as_it_runs(folder):
    rank_scenes.checked_as_it_runs(folder, *GPUS)
    rank_scenes.checked_as_it_runs(folder, *GPUS, "--steps", 3)  # captured, and replayed


def test_a_hunt_in_training_names_the_rank_and_the_row(folder):
    diverging_ranks.hunted(folder, *GPUS)


def test_a_condition_that_holds_on_one_rank_ends_all(folder):
    diverging_ranks.watched(folder, *GPUS)


def test_training_has_one_timeline_of_all_ranks(folder):
    diverging_ranks.write(folder, diverging_ranks.STEADY)
    trace = ("--trace", "t.pftrace", "--trace-steps", "1:4")
    code, _, err = diverging_ranks.train(folder, *GPUS, *trace)
    assert code == 0, err
    assert "2 ranks, 2 runs" in err


def test_ranks_that_are_killed_at_random(folder, gpus, request):
    count = request.config.getoption("--kills")
    for one in kills(folder, count, seed=count, most=min(gpus, 4), device="cuda"):
        print(one)  # with -s
        assert one.seconds < 10


def test_a_recording_has_all_ranks(folder):
    text, calls = of_all("f32", 2)
    (folder / "all.opg").write_text(text)
    line = ("all.opg", "-i", "ones", "--steps", 4, "-w", "runs.db", "--trace", "run.pftrace")
    outputs(*line, "--device", "cuda")
    with closing(sqlite3.connect("runs.db")) as connection:
        query = "select status, steps from runs"
        assert [row[0] for row in connection.execute(query)] == ["done", "done"]
    assert Path("run.pftrace").stat().st_size
    assert len(calls) == len(CALLS)


LOOP = """graph main(x: f32[65536]) -> f32[65536] {
  y, k = while(x, 0, test=more, body=turn, limit=1000000000)
  return y
}

graph more(x: f32[65536], k: i32[]) -> bool[] {
  c = less(k, 1000000000)
  return c
}

graph turn(x: f32[65536], k: i32[]) -> f32[65536], i32[] {
  y = all_reduce(x, reduction="mean")
  m = add(k, 1)
  return y, m
}
"""


@pytest.mark.parametrize("killed", [0, 1])
def test_a_rank_that_is_killed_ends_the_others(folder, killed):
    text = "graph main(x: f32[65536]) -> f32[65536] {\n  y = all_reduce(x)\n  return y\n}\n"
    (folder / "sum.opg").write_text(text)
    line = ("sum.opg", "-i", "ones", "--steps", 10**9, "--ranks", 2, "--device", "cuda")
    process = opstep_ranks("run", *line, "--trace", "{rank}.pftrace")
    ranks: list[int] = []
    try:
        wait_until(lambda: all(is_under_way(folder / f"{rank}.pftrace") for rank in range(2)))
        ranks += children(process.pid)
        os.kill(ranks[killed], signal.SIGKILL)
        began = time.monotonic()
        _, err = process.communicate(timeout=400)
        assert time.monotonic() - began < 10
    finally:
        process.kill()
    assert process.returncode == 3
    assert f"rank {killed} was killed by SIGKILL" in err
    assert f"rank {1 - killed} waits for rank {killed}, which is gone" in err
    assert "sum.opg:2" in err
    assert not any(runs(pid) for pid in ranks)


def is_under_way(timeline: Path) -> bool:
    """Whether steps have been recorded."""
    return timeline.exists() and timeline.stat().st_size > 100_000


def test_a_rank_that_does_not_come_is_named(folder):
    """It goes round in a loop of its own, and never comes to the sum."""
    (folder / "late.opg").write_text(
        LOOP.replace('all_reduce(x, reduction="mean")', "mul(x, 1.0)")
        .replace("  return y\n}", "  z = all_reduce(y)\n  return z\n}", 1)
        .replace("less(k, 1000000000)", "less(k, limit)")
        .replace("  c = less", "  r = rank()\n  limit = mul(r, 1000000000)\n  c = less")
    )
    line = ("late.opg", "-i", "ones", "--ranks", 2, "--device", "cuda", "--rank-timeout", 3)
    code, _, err = ended("run", *line)
    assert code == 3
    assert "late.opg:3:7: error: after 3 s rank 1 is not here" in err


def test_more_ranks_than_gpus(folder, gpus):
    text = "graph main(x: f32[4]) -> f32[4] {\n  y = all_reduce(x)\n  return y\n}\n"
    (folder / "sum.opg").write_text(text)
    code, _, err = ended("run", "sum.opg", "-i", "ones", "--ranks", gpus + 1, "--device", "cuda")
    assert code == 3
    assert f"there are {gpus} GPUs here for {gpus + 1} ranks" in err
    env = os.environ | {"CUDA_VISIBLE_DEVICES": "0"}
    code, _, err = ended("run", "sum.opg", "-i", "ones", "--ranks", 2, "--device", "cuda", env=env)
    assert code == 3
    assert "ranks 0 and 1 are on one GPU, and NCCL wants one for each" in err


def test_a_launcher_of_others(folder):
    text = "graph main(x: f32[4]) -> f32[4] {\n  y = all_reduce(x)\n  return y\n}\n"
    (folder / "sum.opg").write_text(text)
    line = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "opstep"]
    line += ["run", "sum.opg", "-i", "ones", "--device", "cuda", "--json"]
    found = subprocess.run(line, text=True, capture_output=True, timeout=300)
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout)["outputs"][0]["values"] == [2.0] * 4


def test_sums_are_near_those_of_f64(folder):
    """Large ones, in which NCCL cuts its work."""
    count = 3_000_001
    text = f"graph main(x: f32[{count}]) -> f32[{count}] {{\n  y = all_reduce(x)\n  return y\n}}\n"
    (folder / "sum.opg").write_text(text)
    xs = [np.random.default_rng(r).standard_normal(count, np.float32) for r in range(2)]
    for rank, x in enumerate(xs):
        np.save(f"x{rank}.npy", x)
    line = ("sum.opg", "-i", "x=x{rank}.npy", "--ranks", 2, "--device", "cuda", "-o", "y.npy")
    code, _, err = ended("run", *line)
    assert code == 0, err
    op: Any = OPS["all_reduce"]
    exact = op.together([x.astype(np.float64) for x in xs], **complete(op, {"over": None}))[0]
    np.testing.assert_allclose(np.load("y.npy"), exact, rtol=1e-6, atol=1e-6)
    assert np.load("y.npy").tobytes() == (xs[0] + xs[1]).tobytes()


def test_one_rank_has_the_bits_of_the_plain_program():
    text = "graph main(x: f32[4, 4]) -> f32[4, 4] {\n  y = all_reduce(x)\n  return y\n}\n"
    x = np.random.default_rng(0).standard_normal(SHAPE, np.float32)
    found = opstep.loads(text).run("main", {"x": x}, device="cuda").outputs[0]
    assert found.tobytes() == x.tobytes()
