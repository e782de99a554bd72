"""Models of PyTorch through `torch.compile(backend="opstep")` on the GPU, beside eager mode, a CUDA
graph of it, and inductor: forward passes, training steps, and what a call costs the host.

Inductor has CUDA graphs; with ``--max-autotune`` it also tries kernels, which takes minutes a
model. Each group is a model in a dtype; ``--only "torch GPT-2"`` measures some of them.
"""

from __future__ import annotations

import copy
import gc
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import known_models
import numpy as np
import torch
from rows import Row, at_most, by_turns, group, in_rows, plain
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func

import opstep
from opstep.api.settings import RunSettings
from opstep.runtime.driving import drive

DEVICE = "cuda"
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
BATCHES = (1, 32)
TRAINED = {  # by batch
    "ResNet-18": 32,
    "ResNet-50": 32,
    "VGG-16": 16,
    "ConvNeXt-T": 32,
    "ViT-B/16": 32,
    "GPT-2 124M": 8,
}
IMPORTED = {"ResNet-18": 32, "VGG-16": 16, "GPT-2 124M": 8}
HUNTED = ("ResNet-50", "GPT-2 124M")
NOT_CAPTURED = {("GPT-2 124M", "bf16")}  # beside inductor's graphs PyTorch 2.11's own launch fails
AUTO = {"kernels": "auto"}
NUMBA = {"kernels": "numba"}
STEPS = 3  # whose losses are compared

inductor_mode = "reduce-overhead"

Calls = dict[str, Callable[[], Any]]


def wait() -> None:
    torch.cuda.synchronize()


def afresh() -> None:
    """Settings of PyTorch for all of this, and nothing left of earlier models."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    torch._dynamo.reset()
    gc.collect()
    torch.cuda.empty_cache()


def waited(call: Callable[..., Any], *args: Any) -> Callable[[], Any]:
    def run() -> Any:
        found = call(*args)
        wait()
        return found

    return run


# --- forward --------------------------------------------------------------------------------------


def forward(name: str, batch: int, dtype: str) -> Iterator[Row]:
    """A forward pass. In f32 results are those of eager mode, in bf16 they are as near to those of
    f64 as eager mode's, times two.
    """
    afresh()
    model, x = known_models.made(name, batch)
    model = model.to(DEVICE, DTYPES[dtype])
    x = x.to(DEVICE, DTYPES[dtype]) if x.is_floating_point() else x.to(DEVICE)
    ours = {"auto": AUTO, "numba": NUMBA}
    with torch.no_grad():
        calls: Calls = {"eager": waited(model, x)}
        if (name, dtype) not in NOT_CAPTURED:
            calls["its CUDA graph"] = waited(captured(model, x))
        calls[inductor_mode] = waited(torch.compile(model, mode=inductor_mode), x)
        peers = list(calls)
        for kernels, options in ours.items():
            calls[kernels] = waited(torch.compile(model, backend="opstep", options=options), x)
        error = wrong(model, x, dtype, {through: calls[through] for through in ("eager", *ours)})
        if error:
            yield Row(f"{name} forward, batch {batch}, {dtype}", 0, "", reached=False, error=error)
            return
        ms = {through: s * 1e3 for through, s in by_turns(calls).items()}
    best = min(peers, key=ms.__getitem__)
    for kernels, times in (("auto", 1.0), ("numba", 1.3)):
        what = f"{name} forward, batch {batch}, {dtype}, --kernels {kernels}"
        yield plain(what, ms[kernels], "ms", "PyTorch eager", ms["eager"])
        yield at_most(times, what, ms[kernels], "ms", f"PyTorch's best: {best}", ms[best])


def captured(model: Any, x: Any) -> Callable[[], Any]:
    """Replays eager mode's launches."""
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            model(x)
    wait()
    with torch.cuda.graph(graph, stream=stream):
        y = model(x)

    def replay() -> Any:
        graph.replay()
        return y

    return replay


def wrong(model: Any, x: Any, dtype: str, calls: Calls) -> str:
    """Which result of ours is too far from what it should be; "" if none is."""
    found = {through: call() for through, call in calls.items()}
    limit, exact = 1e-4, found["eager"]
    if dtype != "f32":
        exact = copy.deepcopy(model).double()(x.double() if x.is_floating_point() else x)
        limit = 2 * known_models.distance(found["eager"], exact)
    for through, y in found.items():
        difference = known_models.distance(y, exact)
        if not difference <= limit:
            return f"{through} differs by {difference:.1e} of the largest, and may by {limit:.1e}"
    return ""


def register(name: str, dtype: str) -> None:
    @group(f"torch {name}, {dtype}")
    def both_batches() -> Iterator[Row]:
        for batch in BATCHES:
            yield from forward(name, batch, dtype)


# --- training -------------------------------------------------------------------------------------


def step_of(model: Any, network: Any, x: Any) -> Callable[[], Any]:
    """A step of SGD; gives the loss. `network`: the model, or what it was compiled to."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> Any:
        optimizer.zero_grad(set_to_none=True)
        y = network(x)
        y = y.reshape(-1, y.shape[-1])
        labels = torch.arange(len(y), device=DEVICE) % y.shape[-1]
        loss = torch.nn.functional.cross_entropy(y, labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def training(name: str, batch: int) -> Iterator[Row]:
    """Without what is drawn, so that losses can be compared."""
    afresh()
    model, x = known_models.made(name, batch)
    model, x = model.train().to(DEVICE), x.to(DEVICE)
    for module in model.modules():
        if type(module).__name__ in ("Dropout", "StochasticDepth"):
            module.p = 0.0
    calls: Calls = {"eager": step_of(model, model, x)}
    ways = {"ours": AUTO, "numba": NUMBA}
    if name in HUNTED:
        ways["hunt"] = {**AUTO, "hunt": True}
    for through, options in ways.items():
        own = copy.deepcopy(model)
        compiled = torch.compile(own, backend="opstep", options=options)
        calls[through] = step_of(own, compiled, x)
    exactly, wide = copy.deepcopy(model).double(), x.double() if x.is_floating_point() else x
    exact = losses_of(step_of(exactly, exactly, wide))
    del exactly, wide
    losses = {through: losses_of(call) for through, call in calls.items()}
    check_losses(name, losses, exact)
    ms = {k: s * 1e3 for k, s in in_rows(calls, wait).items()}
    what = f"{name} training step, batch {batch}, f32"
    yield at_most(1.0, what, ms["ours"], "ms", "PyTorch eager", ms["eager"])
    yield at_most(1.2, f"{what}, numba", ms["numba"], "ms", "PyTorch eager", ms["eager"])
    if "hunt" in ms:
        yield at_most(1.15, f"{what}, hunt", ms["hunt"], "ms", "without hunt", ms["ours"])


def losses_of(step: Callable[[], Any]) -> list[float]:
    """The first losses: each depends on the gradients of those before it."""
    return [float(step()) for _ in range(STEPS)]


def check_losses(name: str, losses: dict[str, list[float]], exact: list[float]) -> None:
    """Raises where losses are not about as near to those in f64 as eager mode's: batch norm over
    few numbers makes much of the least difference between two orders of a sum.
    """
    away = max(abs(a - b) for a, b in zip(losses["eager"], exact, strict=True))
    for through, found in losses.items():
        for a, b in zip(found, exact, strict=True):
            if not abs(a - b) <= 4 * away + 1e-4 * abs(b):
                raise ValueError(
                    f"{name}, {through}: the losses {found} are too far from f64's {exact}: "
                    f"eager mode's are {losses['eager']}"
                )


def register_training(name: str, batch: int) -> None:
    @group(f"torch training, {name}")
    def steps() -> Iterator[Row]:
        yield from training(name, batch)


def imported(name: str, batch: int) -> Iterator[Row]:
    """A step with its loss and its updates, all in one program, with what `auto` takes at first
    sight.
    """
    afresh()
    whole, x, labels = known_models.to_train(name, batch)
    program = opstep.from_torch(whole, (x, labels)).with_optimizer("main", "sgd", lr=0.01)
    given = {"x": x.numpy(), "labels": labels.numpy()}
    whole, x, labels = whole.to(DEVICE), x.to(DEVICE), labels.to(DEVICE)
    optimizer = torch.optim.SGD(whole.parameters(), lr=0.01)

    def eager() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = whole(x, labels)
        loss.backward()
        optimizer.step()
        return float(loss)

    settings = RunSettings(device=DEVICE, kernels="auto")
    with program._running("main_step", given, settings) as job:

        def ours() -> float:
            drive(job.context.run(job.binding))
            return float(job.outputs()[0])

        losses = [[call() for _ in range(STEPS)] for call in (ours, eager)]
        np.testing.assert_allclose(*losses, rtol=1e-2)  # batch norm makes much of rounding
        ms = {k: s * 1e3 for k, s in by_turns({"ours": ours, "eager": eager}).items()}
    what = f"{name} step, imported with its loss, batch {batch}, f32"
    yield at_most(1.0, what, ms["ours"], "ms", "PyTorch eager", ms["eager"])


def register_imported(name: str, batch: int) -> None:
    @group(f"torch imported, {name}")
    def steps() -> Iterator[Row]:
        yield from imported(name, batch)


# --- a call ---------------------------------------------------------------------------------------


def ten_ops(x, w):
    for _ in range(5):
        x = (x + w).relu()
    return x


def overhead() -> Iterator[Row]:
    """The host's time until a call has handed over its work: nobody waits for the GPU."""
    from opstep.api import executable

    afresh()
    made: list[executable.Executable] = []
    init = executable.Executable.__init__

    def kept(self: Any, *args: Any, **kwargs: Any) -> None:
        made.append(self)
        init(self, *args, **kwargs)

    executable.Executable.__init__ = kept  # pyright: ignore[reportAttributeAccessIssue]
    try:
        ours = torch.compile(ten_ops, backend="opstep", options=AUTO)
        x, w, y = (torch.randn(4096, device=DEVICE) for _ in range(3))
        with torch.no_grad():
            same = torch.equal(ours(x, w), ten_ops(x, w))
    finally:
        executable.Executable.__init__ = init
    if not (same and len(made) == 1):
        raise ValueError("results differ")
    inductor = torch.compile(ten_ops, backend="inductor", mode=inductor_mode)
    idle = torch.compile(ten_ops, backend=aot_autograd(fw_compiler=gives(y)))
    given, results = [x.data_ptr(), w.data_ptr()], [y.data_ptr()]
    calls: Calls = {
        "ours": lambda: ours(x, w),
        "direct": lambda: made[0].run(given, results, queue()),
        "idle": lambda: idle(x, w),
        "inductor": lambda: inductor(x, w),
    }
    with torch.no_grad():
        us = handed_over(calls)
    cost = us["ours"] - us["direct"]
    what = "10 small ops: a call of the backend over the executable's"
    idle_peer = "a backend that computes nothing, a call"
    yield Row(what, cost, "µs", idle_peer, us["idle"], "≤ 15 µs", cost <= 15)
    yield plain(
        "10 small ops: a call", us["ours"], "µs", f"inductor, {inductor_mode}", us["inductor"]
    )


def gives(result: Any) -> Callable[..., Any]:
    """A compiler of graphs that computes nothing."""
    return lambda module, inputs: make_boxed_func(lambda *args: [result])


def queue() -> int | None:
    return torch.cuda.current_stream().cuda_stream if DEVICE == "cuda" else None


def handed_over(calls: Calls, rounds: int = 31, times: int = 50) -> dict[str, float]:
    """Median microseconds of a call; the GPU ends its work between samples."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(-3, rounds):
        for name, call in calls.items():
            wait()
            start = time.perf_counter()
            for _ in range(times):
                call()
            if turn >= 0:
                samples[name].append((time.perf_counter() - start) / times * 1e6)
    wait()
    return {name: statistics.median(found) for name, found in samples.items()}


if known_models.MISSING:
    print(f"torch_models: skipped, for there is no {' and no '.join(known_models.MISSING)}")
else:
    for _name in (*known_models.MODELS, *known_models.MORE):
        for _dtype in DTYPES:
            register(_name, _dtype)
    for _name, _batch in TRAINED.items():
        register_training(_name, _batch)
    for _name, _batch in IMPORTED.items():
        register_imported(_name, _batch)
    group("torch, a call")(overhead)
