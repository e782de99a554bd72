"""Models in ONNX's format beside ONNX Runtime: one input at a time, on one thread and on two.

Each case is a process of its own, which this file is, too: threads and memory are then the case's.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import known_models
import numpy as np
from bench_torch import by_turns
from harness import Measured, bench, in_process, times_peer

FLOATS = ("ResNet-50", "MobileNet v2", "BERT-base", "GPT-2 124M", "GPT-2 124M of 1 token")
INTEGERS = ("ResNet-50 of bytes",)
THREADS = ("one thread", "two threads")
EXACT = "exact"
LARGEST = {"floats": 1e-4, EXACT: 1e-4, "bytes": 0.15}  # difference, of the largest element
ROUNDS = 9
SETTLE = 0.1  # seconds: ONNX Runtime's threads go on looking for work for some 60 ms

MISSING = [n for n in ("onnx", "onnxruntime", "onnxscript") if find_spec(n) is None]
MISSING += known_models.MISSING
if MISSING:
    print(f"bench_onnxruntime: skipped, for there is no {' and no '.join(MISSING)}")
    bench = lambda *_, **__: lambda function: function  # noqa: E731 - none of it is registered


def cases(names: tuple[str, ...]) -> list[str]:
    return [f"{name}, {threads}" for name in names for threads in THREADS]


@bench("ONNX, {}", peer="ONNX Runtime", bars=[times_peer(1.2)], over=cases(FLOATS))
def floats(case: str):
    return compared(case)


@bench("ONNX, {}", peer="ONNX Runtime, exact", bars=[times_peer(1.5)], over=cases(INTEGERS))
def integers(case: str):
    """Ours gives the same integers on every processor. On x86-64 without VNNI ONNX Runtime's
    saturate unless it is asked to be exact.
    """
    return compared(case, EXACT)


@bench("ONNX, {}", peer="ONNX Runtime as it comes", bars=[], over=cases(INTEGERS))
def integers_as_they_come(case: str):
    return compared(case)


def compared(case: str, *how: str) -> Measured:
    times = in_process(__file__, case, *how)
    return Measured(times["ours"], times["peer"], "ms")


# --- the process of a case ------------------------------------------------------------------------


def exported(name: str, folder: Path) -> tuple[Path, np.ndarray]:
    """The model as a file, and an input."""
    import torch

    whole, _, kind = name.partition(" of ")
    model, x = known_models.made(whole, 1)
    x = x[:, :1] if kind == "1 token" else x
    path = folder / "plain.onnx"
    with torch.no_grad():
        torch.onnx.export(model, (x,), path, dynamo=True, verbose=False)
    return (quantised(path, x.numpy()) if kind == "bytes" else path), x.numpy()


def quantised(path: Path, x: np.ndarray) -> Path:
    """The model with weights of bytes, as ONNX Runtime writes it."""
    import onnx
    import onnxruntime.quantization as q
    from onnxruntime.quantization.shape_inference import quant_pre_process

    name = onnx.load(path, load_external_data=False).graph.input[0].name

    class Samples(q.CalibrationDataReader):
        left = [{name: x}]

        def get_next(self) -> Any:
            return self.left.pop() if self.left else None

    ready, to = path.with_stem("ready"), path.with_stem("quantised")
    quant_pre_process(path, ready)
    q.quantize_static(
        ready, to, Samples(), per_channel=True, activation_type=q.QuantType.QUInt8
    )  # fmt: skip
    return to


def of_ours(path: Path, x: np.ndarray, threads: int) -> Callable[[], np.ndarray]:
    import opstep
    from opstep.api.executable import Executable
    from opstep.api.external import ExternalTensor
    from opstep.api.settings import RunSettings

    program = opstep.from_onnx(path)
    types = [b.type for b in program.graphs["main"].inputs]
    held = Executable(program, "main", types, RunSettings(threads=threads))  # pyright: ignore
    return lambda: np.from_dlpack(held([ExternalTensor.of(x)])[0])


def of_peer(path: Path, x: np.ndarray, threads: int, exact: bool) -> Callable[[], Any]:
    import onnxruntime

    from opstep.frontends.onnx.comparing import exact_session

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    if exact:
        session = exact_session(str(path), options)
    else:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    given = {session.get_inputs()[0].name: x}
    return lambda: session.run(None, given)[0]


def main(case: str, *how: str) -> None:
    """Prints milliseconds of a call. One thread's are CPU time, of all threads together, which is
    what it takes where nothing else runs; two threads' are those of the wall's clock.
    """
    warnings.filterwarnings("ignore")
    name, _, threads = case.partition(", ")
    count, clock = (1, time.process_time) if threads == THREADS[0] else (2, time.perf_counter)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    with tempfile.TemporaryDirectory() as folder:
        path, x = exported(name, Path(folder))
        peer = of_peer(path, x, count, EXACT in how)
        calls = {"ours": of_ours(path, x, count), "peer": peer}
        found, expected = (call() for call in calls.values())
    difference = np.abs(found - expected).max() / np.abs(expected).max()
    if not difference <= LARGEST["floats" if name in FLOATS else EXACT if how else "bytes"]:
        raise ValueError(f"results differ by {difference:.1e} of the largest")
    seconds = by_turns(calls, ROUNDS, clock, settle_s=SETTLE)
    print(json.dumps({who: found * 1e3 for who, found in seconds.items()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
