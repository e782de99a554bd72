"""Training on the GPU: steps of the networks of `examples/` beside eager PyTorch, what updates take
alone, and what `opstep train` adds to a step by the batches that it hands over.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from gpu_timing import timed
from networks import ROOT, bound
from rows import Row, at_least, at_most, by_turns, group
from torch_models import afresh

import opstep
from opstep.runtime.ir.printer import print_module
from opstep.training.loop import Settings
from opstep.training.train import prepare

sys.path.append(str(ROOT / "tests" / "shared"))
sys.path.append(str(ROOT / "benchmarks"))

SGD = ("SGD", {"lr": 1e-3, "momentum": 0.9})
ADAMW = ("AdamW", {"lr": 1e-4, "weight_decay": 1e-2})
NETWORKS = {  # batch, optimizer
    "LeNet": (64, ADAMW),
    "AlexNet": (64, SGD),
    "U-Net": (64, ADAMW),
    "GPT": (16, ADAMW),
}
STEPS = 3  # whose losses are compared
ADAM = {"lr": 1e-4}
ELEMENTS = 100_000_000
TENSORS = {"one tensor": [ELEMENTS], "148 tensors": [1_000_000] * 100 + [1024] * 48}


def on_gpu(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cuda().requires_grad_(tensor.requires_grad)


@group("training")
def steps() -> Iterator[Row]:
    """In f32. Losses of the first steps are those of PyTorch within 1e-3."""
    for name in NETWORKS:
        afresh()
        yield from _steps(name)


def _steps(name: str) -> Iterator[Row]:
    import training_peers

    chosen, (size, (kind, settings)) = training_peers.NETWORKS[name], NETWORKS[name]
    program = chosen.program()
    batch = chosen.batch(size, np.random.default_rng(0))
    tensors = {n: on_gpu(t) for n, t in chosen.tensors(program).items()}
    leaves = [t for t in tensors.values() if t.requires_grad]
    given = {n: t.cuda() for n, t in training_peers.on_torch(batch).items()}
    optimizer = getattr(torch.optim, kind)(leaves, **settings)

    def eager() -> torch.Tensor:
        optimizer.zero_grad()
        loss = chosen.peer(tensors, given)
        loss.backward()
        optimizer.step()
        torch.cuda.synchronize()
        return loss

    stepped = program.with_optimizer("loss", kind.lower(), **settings)
    if name != "AlexNet":  # whose dropout draws other numbers
        found = [
            float(stepped.run("loss_step", batch, device="cuda").outputs[0]) for _ in range(STEPS)
        ]
        expected = [eager().item() for _ in range(STEPS)]
        np.testing.assert_allclose(found, expected, rtol=1e-3)
    calls: dict[str, Callable[[], Any]] = {"eager": eager}
    for kernels in ("auto", "numba"):
        own = chosen.program().with_optimizer("loss", kind.lower(), **settings)
        calls[kernels] = bound(own, "loss_step", batch, kernels=kernels)
    ms = {through: s * 1e3 for through, s in by_turns(calls).items()}
    what = f"{name} training step, batch {size}, f32"
    yield at_most(1.0, what, ms["auto"], "ms", "PyTorch eager", ms["eager"])
    yield at_most(1.2, f"{what}, numba", ms["numba"], "ms", "PyTorch eager", ms["eager"])


@group("optimizers")
def updates() -> Iterator[Row]:
    """Adam's updates alone. 28 bytes a param: it, its gradient and two moments are read, all but
    the gradient are written.
    """
    copied = _copied()
    for what, sizes in TENSORS.items():
        afresh()
        moved = 28 * sum(sizes) / 1e9
        ours, theirs = _adam(sizes), _fused_adam(sizes)
        what = f"Adam of 100M params, {what}"
        yield at_least(0.9, what, moved / ours, "GB/s", "copy", copied)
        yield at_least(1.0, what, moved / ours, "GB/s", "PyTorch's fused Adam", moved / theirs)


def _copied() -> float:
    """GB/s of a copy, read and written."""
    source, target = (torch.empty(1 << 28, device="cuda") for _ in range(2))
    return 2 * source.nbytes / timed(lambda: target.copy_(source)) / 1e9


def _adam(sizes: list[int]) -> float:
    """Seconds of the updates of a step, as its text has them, gradients being inputs."""
    inputs = ", ".join(f"d_w{k}: f32[{n}]" for k, n in enumerate(sizes))
    rng = np.random.default_rng(0)
    given = {f"d_w{k}": rng.standard_normal(n, np.float32) for k, n in enumerate(sizes)}
    params = [f"param w{k}: f32[{n}] = normal(std=0.02)" for k, n in enumerate(sizes)]
    squares = [f"  y{k} = sum(w{k})" for k in range(len(sizes))]
    total = [
        f"  l{k} = add(l{k - 1}, y{k})" if k else "  l0 = mul(y0, 1.0)" for k in range(len(sizes))
    ]
    loss = ["graph loss() -> f32[] {", *squares, *total, f"  return l{len(sizes) - 1}", "}"]
    whole = opstep.loads("\n".join([*params, *loss, ""])).with_optimizer("loss", "adam", **ADAM)
    before, _, step = print_module(whole.module).partition("graph loss_step(")
    _, _, updates = step.partition("  # Updates by adam.")
    updates, _, _ = updates.rpartition("  return ")
    text = f"{before}graph updates({inputs}) -> i64[] {{{updates}  return next_step\n}}\n"
    updating = bound(opstep.loads(text), "updates", given)
    return by_turns({"updates": updating}, rounds=31)["updates"]


def _fused_adam(sizes: list[int]) -> float:
    leaves = [torch.randn(n, device="cuda", requires_grad=True) for n in sizes]
    for leaf in leaves:
        leaf.grad = torch.randn_like(leaf)
    optimizer = torch.optim.Adam(leaves, fused=True, **ADAM)

    def step() -> None:
        optimizer.step()
        torch.cuda.synchronize()

    return by_turns({"fused": step}, rounds=31)["fused"]


class Times:
    """When each step had ended."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def began(self, trainer: Any) -> None:
        """There is nothing to time yet."""

    def stepped(self, trainer: Any, metrics: Any) -> None:
        self.ends.append(time.perf_counter())

    def validated(self, trainer: Any, metrics: Any) -> None:
        """Validations are none of it."""

    def ended(self, trainer: Any, outcome: Any) -> None:
        if outcome.error:
            raise outcome.error


@group("batches")
def batches() -> Iterator[Row]:
    """A step of `opstep train`, from one step's end to the next one's, beside one with its batch on
    the GPU.
    """
    import training_peers

    for name in ("U-Net", "AlexNet"):
        afresh()
        chosen, (size, (kind, settings)) = training_peers.NETWORKS[name], NETWORKS[name]
        settings = settings | {"lr": 1e-7}  # on pictures of noise more would end in a NaN
        data = chosen.batch(size * 40, np.random.default_rng(0))
        first = {n: a[:size] for n, a in data.items()}
        program = chosen.program().with_optimizer("loss", kind.lower(), **settings)
        placed = bound(program, "loss_step", first)
        alone = by_turns({"placed": placed}, rounds=41)["placed"] * 1e3
        times, wanted = Times(), Settings(epochs=3, batch=size, device="cuda", kernels="numba")
        optimizer = getattr(opstep.optim, kind)(**settings)
        prepare(
            chosen.program(), data, wanted, graph="loss", optimizer=optimizer, observers=[times]
        ).run()
        ms = statistics.median(b - a for a, b in pairwise(times.ends[10:])) * 1e3
        what = f"{name}, step of opstep train, batch {size}"
        yield at_most(1.03, what, ms, "ms", "batch on the GPU", alone)
