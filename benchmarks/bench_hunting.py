"""Hunting NaNs: what flags cost while nothing is wrong, and how soon a verdict is there."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
from bench_runtime import EXAMPLES, bound
from harness import Measured, Timed, at_least, at_most, bench, times_peer

import opstep
from opstep.api.settings import RunSettings
from opstep.hunting.search import hunt
from opstep.runtime.device.flagging import leaving
from opstep.runtime.driving import drive

TESTS = Path(__file__).parent.parent / "tests"
sys.path += [str(TESTS / "hunting"), str(TESTS / "shared")]


def unet(batch: int):
    program = opstep.load(EXAMPLES / "unet.opg")
    return program, np.random.default_rng(0).standard_normal((batch, 1, 64, 64), np.float32)


def flagged(program, inputs, device: str = "cpu"):
    """`bound`, with flags, and the host's look at them."""
    running = program._running("main", inputs, RunSettings(device=device), flagged=leaving)
    job = running.__enter__()

    def run(running=running):  # which ends when it is dropped
        drive(job.context.run(job.binding))
        return job.context.flags.raised()

    return run


@bench("hunt while nothing is wrong, U-Net batch {}", peer="bare run", bars=[times_peer(1.3)],
       over=[1, 32])  # fmt: skip
def nothing_wrong(batch: int):
    program, x = unet(batch)
    ours, theirs = flagged(program, {"x": x}), bound(program, "main", {"x": x})
    if ours():
        raise ValueError("flags are raised though nothing is wrong")
    return Timed(ours, theirs, unit="ms", rounds=15)


@bench("check of every output, U-Net batch 32", peer="PyTorch eager, bare")
def torch_checks():
    """What a person would write: a hook behind each module that asks for non-finite elements."""
    import peers
    import torch

    program, x = unet(32)
    weights = {k: torch.from_numpy(v.copy()) for k, v in program.params.items()}
    given = torch.from_numpy(x)

    class Checked(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor) and result.is_floating_point():
                with torch._C.DisableTorchFunction():
                    if not torch.isfinite(result).all():
                        raise ValueError("a NaN or an infinity")
            return result

    @torch.inference_mode()
    def bare():
        return peers.unet(given, weights)

    @torch.inference_mode()
    def checked():
        with Checked():
            return peers.unet(given, weights)

    return Timed(checked, bare, unit="ms", rounds=9)


@bench("hunt, from the bad step to the verdict, U-Net batch 32", bars=[at_most(5, "s")])
def verdict():
    program, x = unet(32)
    x[5, 0, 7, 9] = np.nan
    program.run("main", {"x": x})  # kernels are there
    began = time.perf_counter()
    found = hunt(program, "main", {"x": x})
    if found.first is None or found.first.given != "input x":
        raise ValueError("not found where it was born")
    return Measured(time.perf_counter() - began, unit="s")


@bench("hunt, seeded bugs whose origin is named", bars=[at_least(40, "bugs")])
def seeded_bugs():
    return Measured(right("bugs"), unit="bugs")


@bench("hunt, clean graphs without an alarm", bars=[at_least(40, "graphs")])
def clean_graphs():
    return Measured(right("clean"), unit="graphs")


def right(which: str) -> int:
    """How many of the tests' programs are judged right; raises where one is not."""
    import pytest
    import seeded

    paths = seeded.bugs() if which == "bugs" else seeded.clean()
    for path in paths:
        case = seeded.seeded(path)
        with pytest.MonkeyPatch.context() as patch:
            if case.broken:
                seeded.break_kernel(patch, *case.broken)
            found = hunt(case.program, case.graph, case.inputs, steps=case.steps)
        first = next(iter([*found.findings, *found.masked]), None)
        wanted = case.first
        if which == "clean":
            fine = not found.found
        else:
            fine = first is not None and (wanted.kind in (first.kind, "given"))
            line = first.where.line if first and first.where else 0
            fine = fine and line == (wanted.line or line)
        if not fine:
            raise ValueError(f"{path.stem} is judged wrong")
    return len(paths)
