"""Whole networks on the GPU: their time, what watching costs, contexts side by side, memory."""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import known_networks
import numpy as np
import torch
from bench_runtime import unfused
from rows import Row, at_least, at_most, by_turns, group

import opstep
from opstep.api.settings import RunSettings
from opstep.runtime.device.flagging import leaving
from opstep.runtime.driving import drive
from opstep.runtime.ir.types import DTYPES

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
sys.path.append(str(ROOT / "tests" / "shared"))
BATCH = 64
WRITTEN_S = 0.3  # by when a recording has written what a block of calls gave it
_open = ExitStack()  # jobs end with the process


def bound(
    program, graph, inputs, replays=True, kernels="numba", recording=None, flagged=None, fuse=True,
    **switches,
) -> Callable[[], Any]:  # fmt: skip
    """A callable that runs a graph on the GPU once, inputs in place, and waits for its end.

    `replays`: whether stretches are captured into CUDA graphs. `flagged`: what a hunt looks at.
    """
    job = job_of(program, graph, inputs, replays, kernels, recording, flagged, fuse, **switches)

    def run():
        drive(job.context.run(job.binding))
        if flagged and job.context.flags.raised():
            raise ValueError("a NaN or an infinity, and there is none")
        job.step_done()

    return run


def job_of(
    program, graph, inputs, replays=True, kernels="numba", recording=None, flagged=None, fuse=True,
    **switches,
):  # fmt: skip
    tunes = kernels == "auto"
    settings = RunSettings(device="cuda", kernels=kernels, autotune=tunes, **switches)
    device = program.on("cuda", settings.setup)
    before = device.replays
    device.replays = replays
    plan = None if fuse else unfused(program, graph, inputs, settings)
    job = program._running(graph, inputs, settings, (), recording, flagged, plan)
    running = _open.enter_context(job)
    drive(running.context.run(running.binding))
    device.replays = before
    return running


def network(name: str) -> tuple[Any, dict[str, np.ndarray], Callable[[], Any]]:
    """(program, inputs, PyTorch's call) of an example."""
    import peers

    program = opstep.load(EXAMPLES / f"{name}.opg")
    shape = {"alexnet": (1, 224, 224), "unet": (1, 64, 64)}[name]
    x = np.random.default_rng(0).standard_normal((BATCH, *shape), np.float32)
    weights = {k: torch.from_numpy(v.copy()).cuda() for k, v in program.params.items()}
    given = torch.from_numpy(x).cuda()

    @torch.inference_mode()
    def eager():
        y = getattr(peers, name)(given, weights)
        torch.cuda.synchronize()
        return y

    return program, {"x": x}, eager


@group("networks")
def forward() -> Iterator[Row]:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    for name, title in (("alexnet", "AlexNet"), ("unet", "U-Net")):
        program, inputs, eager = network(name)
        calls = {"PyTorch eager": eager}
        for kernels in ("auto", "numba"):
            calls[kernels] = bound(program, "main", inputs, kernels=kernels)
            found = program.run("main", inputs, device="cuda", kernels=kernels).outputs[0]
            theirs = eager().cpu().numpy()
            difference = np.abs(found - theirs).max() / np.abs(theirs).max()
            if not difference < 1e-4:
                raise ValueError(f"{title}, {kernels}: differs by {difference:.1e} of the largest")
        ms = {k: s * 1e3 for k, s in by_turns(calls, rounds=25).items()}
        for kernels, times in (("auto", 1.1), ("numba", 3.0)):
            what = f"{title} forward, batch {BATCH}, f32, --kernels {kernels}"
            yield at_most(times, what, ms[kernels], "ms", "PyTorch eager", ms["PyTorch eager"])


# How it is watched: at most how many times a bare run, of each network.
WATCHED: dict[str, dict[str, float]] = {
    "timeline": {"U-Net b64": 1.05, "ResNet-50 b32": 1.03, "ResNet-50 b1": 1.1},
    "statistics": {
        "U-Net b64": 1.2, "ResNet-50 b32": 1.12, "ResNet-50 b32 bf16": 1.25, "ResNet-50 b1": 1.5,
    },
    "statistics of each 10th step": {
        "ResNet-50 b32": 1.02, "ResNet-50 b32 bf16": 1.03, "ResNet-50 b1": 1.06,
    },
    "debug mode": {"U-Net b64": 3.0, "ResNet-50 b32": 1.8, "ResNet-50 b1": 3.0},
    "hunt, nothing wrong": {"U-Net b64": 1.2, "ResNet-50 b32": 1.05, "ResNet-50 b1": 1.05},
}  # fmt: skip


def recording(how: str, folder: Path) -> opstep.Recording | None:
    """What records a run that is watched so."""
    if how == "timeline":
        return opstep.Recording(trace=folder / "run.pftrace")
    if how.startswith("statistics"):
        return opstep.Recording(workspace=folder / "a.db", stats_every=10 if "10th" in how else 1)
    return None


def watched_network(name: str) -> tuple[Any, dict[str, np.ndarray]]:
    if name.startswith("U-Net"):
        return network("unet")[:2]
    _, batch, *dtype = name.split()
    text, x, _ = known_networks.resnet50(int(batch[1:]))
    if dtype:
        text, x = text.replace("f32", "bf16"), x.astype(DTYPES["bf16"].numpy)
    return opstep.loads(text), {"x": x}


@group("watched runs")
def watched() -> Iterator[Row]:
    """The kernels' own bits are those of a bare run; what is measured is a step's time."""
    for how, bars in WATCHED.items():
        for name, times in bars.items():
            program, inputs = watched_network(name)
            with tempfile.TemporaryDirectory() as folder:
                kept = recording(how, Path(folder))
                switches = {
                    "debug mode": {"mode": "debug"},
                    "hunt, nothing wrong": {"flagged": leaving},
                }
                on = {"recording": kept, **switches.get(how, {})}
                calls = {
                    "bare": bound(program, "main", inputs, kernels="auto"),
                    how: bound(program, "main", inputs, kernels="auto", **on),
                }
                ms = {k: s * 1e3 for k, s in in_blocks(calls).items()}
                _open.close()
                if kept:
                    kept.close()
            yield at_most(times, f"{name}, {how}", ms[how], "ms", "bare async run", ms["bare"])


def in_blocks(calls: dict[str, Callable[[], Any]], blocks: int = 5, size: int = 20):
    """Seconds of each call, by name: the median of blocks' means. Blocks are taken by turns, calls
    are not: while a recording writes what it has, in a thread of its own, no other call is timed.
    """
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(blocks + 1):
        for name, call in calls.items():
            start = time.perf_counter()
            for _ in range(size):
                call()
            if turn:
                samples[name].append((time.perf_counter() - start) / size)
            time.sleep(WRITTEN_S)
    return {name: statistics.median(found) for name, found in samples.items()}


def lenet_jobs(count: int) -> list[Any]:
    """Contexts over one set of params, each bound to LeNet."""
    program = opstep.load(EXAMPLES / "lenet.opg")
    x = np.random.default_rng(0).standard_normal((BATCH, 1, 8, 8)).astype(np.float32)
    return [job_of(program, "lenet", {"x": x}) for _ in range(count)]


def together(jobs: list[Any], runs: int) -> float:
    """Runs a second of several contexts, driven by turns by one thread."""
    start, done = time.perf_counter(), 0
    at: dict[int, tuple[Any, Any]] = {}
    while done < runs:
        for k, job in enumerate(jobs):
            loop, fence = at.get(k) or (job.context.run(job.binding), None)
            if fence is None or fence.done():
                fence = next(loop, None)
                if fence is None:
                    done += 1
                    at.pop(k, None)
                    continue
            at[k] = (loop, fence)
    for loop, _ in at.values():
        drive(loop)
    return done / (time.perf_counter() - start)


@group("contexts")
def contexts() -> Iterator[Row]:
    jobs = lenet_jobs(4)
    together(jobs, 500)
    rates: dict[int, list[float]] = {1: [], 4: []}
    for _ in range(7):
        for count, found in rates.items():
            found.append(together(jobs[:count], 2000))
    one, four = (sorted(found)[3] for found in rates.values())
    what = f"4 LeNet contexts at once, batch {BATCH}, one set of params"
    yield at_least(2.5, what, four, "runs/s", "one context", one)


@group("memory")
def memory() -> Iterator[Row]:
    (job,) = lenet_jobs(1)

    def runs(count: int) -> tuple[float, float]:
        for _ in range(count):
            drive(job.context.run(job.binding))
        free, total = torch.cuda.mem_get_info()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return (total - free) / 2**20, pages * 4096 / 2**20

    before, after = runs(1000), runs(10_000)
    names = ("of the GPU", "of the process")
    for where, first, last, slack in zip(names, before, after, (0.0, 0.5), strict=True):
        what = f"memory {where} after 10,000 more runs of LeNet"
        yield Row(what, last, "MiB", "before", first, "unchanged", last - first <= slack)
