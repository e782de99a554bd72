"""Steps of training beside eager PyTorch, with the same weights, batches and optimizer; the curves
of their losses; the gradients of the networks of `examples/`.

Each case is a process of its own, which this file is, too: threads and memory are then the case's.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import known_models
import numpy as np
from bench_runtime import EXAMPLES, bound
from bench_torch import by_turns
from harness import Measured, at_most, bench, in_process, times_peer

SHARED = Path(__file__).parent.parent / "tests" / "shared"
SIZES = {"LeNet": 64, "AlexNet": 32, "U-Net": 16, "ResNet-50": 8, "GPT 10M": 4}
ROUNDS = {"LeNet": 101, "U-Net": 9, "GPT 10M": 7}
SGD = ("SGD", {"lr": 1e-3, "momentum": 0.9})
ADAMW = ("AdamW", {"lr": 1e-3, "weight_decay": 1e-2})
SLOW_ADAMW = ("AdamW", {"lr": 1e-4, "weight_decay": 1e-2})  # there is no warm-up
OPTIMIZERS = {"AlexNet": SGD, "ResNet-50": SGD, "GPT 10M": SLOW_ADAMW}  # of others: AdamW
THREADS = {"one thread": 1, "two threads": 2}
STEPS = 200
NARROW_STEPS = 40
OURS, EAGER, DIFFERENCE, FREE = "ours", "eager", "difference", "without a budget"
TRAINED = (
    "LeNet", "AlexNet", "U-Net", "U-Net without norm", "U-Net of two pictures", "recurrent net",
    "GPT 10M",
)  # fmt: skip

if known_models.MISSING:
    print(f"bench_training: skipped, for there is no {' and no '.join(known_models.MISSING)}")
    bench = lambda *_, **__: lambda function: function  # noqa: E731 - none of it is registered


@bench(
    "training step, {}",
    peer="PyTorch eager",
    bars=[times_peer(1.0)],
    over=[f"{name} batch {n}, {t}" for name, n in SIZES.items() for t in THREADS],
)
def step(case: str):
    found = measured(f"step {case}")
    return Measured(found[OURS], found[EAGER], "ms")


@bench(
    "training step, {}, peak memory",
    peer="PyTorch's allocator",
    bars=[times_peer(1.0)],
    over=[f"{name} batch {n}" for name, n in SIZES.items()],
)
def peak(case: str):
    found = measured(f"peak {case}")
    return Measured(found[OURS], found[EAGER], "MiB")


@bench(
    "training step, U-Net batch 16, one thread, in half of PyTorch's memory",
    peer="without a budget",
    bars=[times_peer(1.35)],
)
def half():
    found = measured("half U-Net batch 16")
    return Measured(found[OURS], found[FREE], "ms")


@bench(
    f"loss curve, {{}}, {STEPS} steps, largest relative difference",
    peer="PyTorch's last loss",
    bars=[at_most(1e-4, "")],
    over=["LeNet", "GPT 10M"],
)
def curve(name: str):
    found = measured(f"curve {name}")
    return Measured(found[DIFFERENCE], found[EAGER])


@bench(f"loss curve, GPT 10M in bf16, {NARROW_STEPS} steps, largest relative difference")
def narrow_curve():
    """With exact weights in f32 on both sides. Sums in bf16 differ by where they are rounded."""
    found = measured("narrow GPT 10M")
    return Measured(found[DIFFERENCE], found[EAGER])


@bench(
    "gradients, {}, largest difference over the largest element",
    peer="PyTorch eager",
    bars=[at_most(1e-5, "")],
    over=TRAINED,
)
def gradients(name: str):
    return Measured(measured(f"gradients {name}")[DIFFERENCE])


@functools.cache
def measured(case: str) -> dict[str, float]:
    """What a process of this file's measures."""
    return in_process(__file__, *case.split(" ", 1))


# --- the process of a case ------------------------------------------------------------------------


class Case(NamedTuple):
    """`program.loss` on a batch beside `peer(batch)`, PyTorch's loss of the tensors `leaves`."""

    program: Any
    loss: str
    leaves: list[Any]
    peer: Callable[[dict[str, Any]], Any]


def network(name: str) -> Any:
    sys.path.append(str(SHARED))
    import training_peers

    return training_peers.NETWORKS[name.removesuffix(" 10M")]


def example(name: str) -> Case:
    chosen = network(name)
    import training_peers

    program = chosen.program()
    tensors = chosen.tensors(program)
    leaves = [tensors[n] for n in training_peers.trained(program)]
    return Case(program, "loss", leaves, lambda given: chosen.peer(tensors, given))


def resnet() -> Case:
    """torchvision's ResNet-50 with a loss, imported."""
    import torch

    import opstep

    class Loss(torch.nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, x, label):
            return torch.nn.functional.cross_entropy(self.model(x), label)

    model = Loss(known_models.made("ResNet-50", 1)[0]).train()
    program = opstep.from_torch(model, tuple(torch.from_numpy(a) for a in pictures(8).values()))
    return Case(program, "main", list(model.parameters()), lambda given: model(**given))


def pictures(size: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((size, 3, 224, 224), np.float32)
    return {"x": x, "label": rng.integers(0, 1000, size)}


def stepping(
    name: str, case: Case, **more: Any
) -> tuple[Any, Callable[[dict[str, Any]], Any]]:  # fmt: skip
    """The program with a step of training, and PyTorch's step. `more`: of `with_optimizer`."""
    import torch

    kind, settings = OPTIMIZERS.get(name, ADAMW)
    optimizer = getattr(torch.optim, kind)(case.leaves, **settings)

    def peer(given: dict[str, Any]) -> Any:
        optimizer.zero_grad()
        loss = case.peer(given)
        loss.backward()
        optimizer.step()
        return loss

    return case.program.with_optimizer(case.loss, kind.lower(), **settings, **more), peer


def time_steps(what: str) -> dict[str, float]:
    """Milliseconds of a step. One thread's are CPU time, of all threads together, which is what it
    takes where nothing else runs; two threads' are those of the wall's clock.
    """
    import torch

    name, rest = what.split(" batch ")
    size, threads = int(rest.split(",")[0]), THREADS[rest.split(", ")[1]]
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    torch.set_num_threads(threads)
    case = resnet() if name == "ResNet-50" else example(name)
    rng = np.random.default_rng(0)
    batch = pictures(size) if name == "ResNet-50" else network(name).batch(size, rng)
    program, peer = stepping(name, case)
    given = {n: torch.from_numpy(a) for n, a in batch.items()}
    ours = bound(program, f"{case.loss}_step", batch, threads=threads)
    calls = {OURS: ours, EAGER: lambda: peer(given)}
    for call in calls.values():
        call()
    clock = time.process_time if threads == 1 else time.perf_counter
    found = by_turns(calls, ROUNDS.get(name, 5), clock)
    return {side: seconds * 1e3 for side, seconds in found.items()}


def prepared(what: str) -> tuple[str, Case, dict[str, np.ndarray]]:
    """The network, and a batch."""
    import torch

    torch.set_num_threads(1)
    name, size = what.split(" batch ")
    case = resnet() if name == "ResNet-50" else example(name)
    rng = np.random.default_rng(0)
    size = int(size)
    return name, case, pictures(size) if case.loss == "main" else network(name).batch(size, rng)


def planned(case: Case, program: Any, batch: dict[str, np.ndarray]) -> float:
    """Bytes that a step takes that nobody looks at, by its plan."""
    from opstep.runtime.ir.types import TensorType

    graph = program.graph(f"{case.loss}_step")
    types = [TensorType(b.type.dtype, batch[b.name.text].shape) for b in graph.inputs]
    plan = program.plan(graph.name.text, types, fuse=True)
    return float(plan.arena + sum(b.nbytes for b in plan.buffers if b.kind != "temp"))


def allocated(case: Case, peer: Callable[[Any], Any], batch: dict[str, np.ndarray]) -> float:
    """Bytes that PyTorch's allocator has given out at most, in a step that is not the first."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    given = {n: torch.from_numpy(a) for n, a in batch.items()}
    peer(given)
    for leaf in case.leaves:
        leaf.grad = None
    kinds = (torch.Tensor, torch.nn.Parameter)  # and none of those that have no memory
    before = [o for o in gc.get_objects() if type(o) in kinds and o.device.type == "cpu"]
    fixed = sum({t.data_ptr(): t.nbytes for t in before}.values())
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        peer(given)
    results: Any = profiled.profiler.kineto_results  # pyright: ignore[reportOptionalMemberAccess]
    events = [e for e in results.events() if e.name() == "[memory]"]
    events.sort(key=lambda e: e.start_ns())
    return float(fixed + np.cumsum([e.nbytes() for e in events]).max())


def measure_peak(what: str) -> dict[str, float]:
    name, case, batch = prepared(what)
    program, peer = stepping(name, case)
    return {
        OURS: planned(case, program, batch) / 2**20,
        EAGER: allocated(case, peer, batch) / 2**20,
    }


def time_half(what: str) -> dict[str, float]:
    """Milliseconds of CPU time of a step within half of what PyTorch takes, and of one without."""
    name, case, batch = prepared(what)
    program, peer = stepping(name, case)
    memory, symbols = int(allocated(case, peer, batch) / 2), {"N": int(what.split()[-1])}
    less, _ = stepping(name, case, memory=memory, symbols=symbols)
    calls = {FREE: bound(program, "loss_step", batch, threads=1)}
    calls[OURS] = bound(less, "loss_step", batch, threads=1)
    for call in calls.values():
        call()
    found = by_turns(calls, 15, time.process_time)
    return {side: seconds * 1e3 for side, seconds in found.items()}


def compare_curves(name: str) -> dict[str, float]:
    import torch

    torch.set_num_threads(1)  # those of two wait for each other where cores are shared
    program, peer = stepping(name, example(name))
    rng, differences, last = np.random.default_rng(0), [], 0.0
    for _ in range(STEPS):
        batch = network(name).batch(SIZES[name], rng)
        found = float(program.run("loss_step", batch, threads=1).outputs[0])
        last = peer({n: torch.from_numpy(a) for n, a in batch.items()}).item()
        differences.append(abs(found - last) / last)
    return {DIFFERENCE: max(differences), EAGER: last}


def compare_narrow(name: str) -> dict[str, float]:
    """The parts of the network are bf16, the loss is f32: as gpt.opg says in its second line."""
    import ml_dtypes
    import torch

    import opstep

    torch.set_num_threads(1)
    chosen, (kind, settings) = network(name), OPTIMIZERS[name]
    text = (EXAMPLES / chosen.file).read_text(encoding="utf-8")
    before, loss, after = text.partition("\ngraph loss")
    program = opstep.loads(before.replace("f32", "bf16") + loss + after, chosen.file)
    exact = {n: torch.tensor(a.astype(np.float32)) for n, a in program.params.items()}
    tensors = {n: t.bfloat16().requires_grad_() for n, t in exact.items()}
    optimizer = getattr(torch.optim, kind)(exact.values(), **settings)
    program = program.with_optimizer("loss", kind.lower(), **settings)
    assert program.params["token"].dtype == ml_dtypes.bfloat16
    rng, differences, last = np.random.default_rng(0), [], 0.0
    for _ in range(NARROW_STEPS):
        batch = chosen.batch(SIZES[name], rng)
        found = float(program.run("loss_step", batch, threads=1).outputs[0])
        theirs = chosen.peer(tensors, {n: torch.from_numpy(a) for n, a in batch.items()})
        theirs.backward()
        for n, t in tensors.items():
            exact[n].grad, t.grad = t.grad.float(), None
        optimizer.step()
        with torch.no_grad():
            for n, t in tensors.items():
                t.copy_(exact[n])
        last = theirs.item()
        differences.append(abs(found - last) / last)
    return {DIFFERENCE: max(differences), EAGER: last}


def compare_gradients(name: str) -> dict[str, float]:
    chosen = network(name)
    import training_peers

    return {DIFFERENCE: max(training_peers.gradients(chosen, 2).values())}


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    parts = {"step": time_steps, "curve": compare_curves, "narrow": compare_narrow}
    parts |= {"gradients": compare_gradients, "peak": measure_peak, "half": time_half}
    print(json.dumps(parts[sys.argv[1]](sys.argv[2])))
