"""Single ops of PyTorch through `torch.compile(backend="opstep")`, beside eager mode: forward, and
backward. On a GPU the times are those that a call's kernels keep it busy, as PyTorch's profiler has
them; on the CPU those of calls, on one thread.

    PYTHONPATH=. python benchmarks/op_sweep.py --device cuda --dtype bf16 --only "pad|interp"

Kernels are compiled by several processes first (``--warm 12``), into the cache on disk.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from op_forms import FORMS, Form

import opstep  # noqa: F401 - registers the backend

# --- measuring ------------------------------------------------------------------------------------


def made(spec: str, device: str, dtype: torch.dtype, seed: int) -> torch.Tensor:
    kind, *sizes = spec.split()
    shape = [int(n) for n in sizes]
    random = torch.Generator().manual_seed(seed)
    if kind[0] == "i":
        return torch.randint(int(kind[1:]), shape, generator=random).to(device)
    if kind == "n":
        return torch.arange(shape[0]).to(device)
    if kind == "b":
        return (torch.rand(shape, generator=random) < 0.7).to(device)
    if kind in ("p", "q"):
        found = torch.rand(shape, generator=random) * 0.9 + 0.1
    else:
        found = torch.randn(shape, generator=random)
    return found.to(device, dtype).requires_grad_(kind in ("f", "p"))


def outputs_of(found: Any) -> list[torch.Tensor]:
    return [found] if isinstance(found, torch.Tensor) else [t for t in found if torch.is_tensor(t)]


def calls_of(form: Form, tensors: list[torch.Tensor], compiled: bool, back: bool):
    function = form.function
    if compiled:
        torch._dynamo.reset()
        function = torch.compile(function, backend="opstep", dynamic=False)
    leaves = [t for t in tensors if t.requires_grad]
    shares: list[torch.Tensor] = []

    def forward() -> list[torch.Tensor]:
        with torch.no_grad():
            return outputs_of(function(*tensors))

    def both() -> list[torch.Tensor]:
        results = [t for t in outputs_of(function(*tensors)) if t.requires_grad]
        if not shares:
            random = torch.Generator().manual_seed(7)
            shares.extend(torch.randn(t.shape, generator=random).to(t) for t in results)
        return list(torch.autograd.grad(results, leaves, shares, allow_unused=True))

    return both if back else forward


def kernels_ms(call: Callable[[], Any], rounds: int = 3, listed: bool = False) -> float:
    """Milliseconds for which a call keeps the GPU busy, by PyTorch's profiler: kernels that run
    side by side count once.
    """
    from torch.profiler import ProfilerActivity, profile

    call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(rounds):
            call()
        torch.cuda.synchronize()
    events = [e for e in found.events() or () if e.device_type.name == "CUDA"]
    if listed:
        totals: dict[str, float] = {}
        for e in events:
            totals[e.name] = totals.get(e.name, 0) + e.device_time / rounds
        for name, us in sorted(totals.items(), key=lambda item: -item[1])[:12]:
            print(f"      {us:9.1f} us  {name[:90]}")
    busy, until = 0.0, 0.0
    for begin, end in sorted((e.time_range.start, e.time_range.end) for e in events):
        busy += max(0.0, end - max(begin, until))
        until = max(until, end)
    return busy / rounds / 1e3


def call_ms(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e3


def by_turns(calls: list[Callable[[], Any]]) -> list[float]:
    """Least times of calls, taken by turns for a second or so."""
    first = [call_ms(call) for call in calls]
    rounds = max(3, min(15, int(700 / max(sum(first), 1e-3))))
    samples = [[call_ms(call) for call in calls] for _ in range(rounds)]
    return [min(of_one) for of_one in zip(*samples, strict=True)]


def difference(ours: list[Any], theirs: list[Any]) -> float:
    """The largest, relative to the largest element of the result; NaNs must be the same."""
    worst = 0.0
    for a, b in zip(ours, theirs, strict=True):
        if a is None or b is None:
            continue
        a, b = a.double(), b.double()
        if not torch.equal(a.isnan(), b.isnan()):
            return math.inf
        a, b = a.nan_to_num(0, 0, 0), b.nan_to_num(0, 0, 0)
        worst = max(
            worst, float((a - b).abs().max() / b.abs().max().clamp(min=1e-6)) if a.numel() else 0
        )
    return worst


def measured(
    name: str, back: bool, device: str, dtype: str, only_compile: bool, listed: bool = False
) -> dict[str, Any]:
    form = FORMS[name]
    kind = {"f32": torch.float32, "bf16": torch.bfloat16}[dtype]
    row: dict[str, Any] = {"op": name, "back": back, "dtype": dtype}
    try:
        tensors = [made(spec, device, kind, k) for k, spec in enumerate(form.tensors)]
        eager = calls_of(form, tensors, False, back)
        wanted = eager()
    except Exception as e:
        return row | {"skipped": f"{type(e).__name__}: {str(e)[:100]}"}
    try:
        ours = calls_of(form, tensors, True, back)
        found = ours()
        if only_compile:
            return row
        row["diff"] = difference(found, wanted)
        if device == "cuda":
            row["ours"] = kernels_ms(ours, listed=listed)
            row["eager"] = kernels_ms(eager, listed=listed)
        else:
            row["ours"], row["eager"] = by_turns([ours, eager])
        row["x"] = row["ours"] / max(row["eager"], 1e-6)
    except Exception as e:
        row["error"] = f"{type(e).__name__}: {str(e)[:300]}"
    return row


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options.add_argument("--dtype", default="f32", choices=["f32", "bf16"])
    options.add_argument("--only", default="", help="a regular expression of names")
    options.add_argument("--json", help="a file for the rows")
    options.add_argument("--warm", type=int, default=0, help="processes that compile first")
    options.add_argument("--part", default="", help=argparse.SUPPRESS)
    options.add_argument("--list", action="store_true", help="kernels, by their time")
    given = options.parse_args()
    warnings.simplefilter("ignore")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    if given.device == "cpu":
        torch.set_num_threads(1)
    chosen = [(n, b) for n in FORMS for b in (False, True) if re.search(given.only, n)]
    chosen = [(n, b) for n, b in chosen if not b or FORMS[n].backward]
    if given.part:
        k, parts = map(int, given.part.split("/"))
        for name, back in chosen[k::parts]:
            measured(name, back, given.device, given.dtype, True)
        return
    if given.warm:
        command = [sys.executable, __file__, *sys.argv[1:], "--part"]
        parts = [subprocess.Popen([*command, f"{k}/{given.warm}"]) for k in range(given.warm)]
        for part in parts:
            part.wait()
    rows = []
    for name, back in chosen:
        row = measured(name, back, given.device, given.dtype, False, given.list)
        rows.append(row)
        shown = (
            f"{row['x']:7.2f}x {row['ours']:9.4f} ms {row['eager']:9.4f} ms  off {row['diff']:.1e}"
            if "x" in row
            else row.get("error") or row.get("skipped")
        )
        print(f"{name + (', backward' if back else ''):32} {given.dtype:5} {shown}", flush=True)
    for back in (False, True):
        ratios = [r["x"] for r in rows if r["back"] == back and "x" in r]
        if ratios:
            mean = statistics.geometric_mean(ratios)
            beyond = sum(x > 3 for x in ratios)
            way, count = "backward" if back else "forward", len(ratios)
            print(f"{way}: geometric mean {mean:.2f}, {beyond} of {count} above 3x")
    if given.json:
        with open(given.json, "w") as file:
            json.dump(rows, file, indent=0)


if __name__ == "__main__":
    main()
