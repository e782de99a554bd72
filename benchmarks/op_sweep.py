"""Single ops of PyTorch through `torch.compile(backend="opstep")`, beside eager mode: forward, and
backward. On a GPU the times are those that a call's kernels keep it busy, as PyTorch's profiler has
them; on the CPU those of calls, on one thread.

    PYTHONPATH=. python benchmarks/op_sweep.py --device cuda --dtype bf16 --only "pad|interp"

Kernels are compiled by several processes first (``--warm 12``), into the cache on disk. ``--sizes
0.25,1,4`` measures each form with its first axis of so many times the length, where eager mode
takes that. With ``--json FILE`` rows are added to a file of lines, and those that it has are not
measured again.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from itertools import product
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


def sized(tensors: tuple[str, ...], size: float) -> list[tuple[str, ...]]:
    """Specifications with the first axis of the first tensor `size` times as long: with all others
    that begin with an axis of that length, and alone. The first that a form takes is meant.
    """
    kind, first, *rest = tensors[0].split()
    longer = max(1, round(int(first) * size))
    scaled = [
        " ".join([k, str(longer), *more]) if n == first else " ".join([k, n, *more])
        for k, n, *more in (spec.split() for spec in tensors)
    ]
    return [tuple(scaled), (" ".join([kind, str(longer), *rest]), *tensors[1:])]


def prepared(form: Form, device: str, kind: torch.dtype, size: float, back: bool):
    """Tensors of that size, eager mode's call and what that gives. Raises what eager mode does."""
    failure: Exception | None = None
    for specs in sized(form.tensors, size) if size != 1 else [form.tensors]:
        try:
            tensors = [made(spec, device, kind, k) for k, spec in enumerate(specs)]
            eager = calls_of(form, tensors, False, back)
            return tensors, eager, eager()
        except Exception as e:
            failure = failure or e
    assert failure is not None
    raise failure


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
    row: dict[str, Any], device: str, only_compile: bool, listed: bool = False
) -> dict[str, Any]:
    """The row of a form with its times, or with why there are none."""
    form, back = FORMS[row["op"]], row["back"]
    kind = {"f32": torch.float32, "bf16": torch.bfloat16}[row["dtype"]]
    try:
        tensors, eager, wanted = prepared(form, device, kind, row["size"], back)
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


KEYS = ("op", "back", "dtype", "size")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options.add_argument("--dtype", default="f32", help="f32, bf16, or both: f32,bf16")
    options.add_argument("--sizes", default="1", help="times the length of the first axis")
    options.add_argument("--only", default="", help="a regular expression of names")
    options.add_argument("--json", help="a file of rows, one a line")
    options.add_argument("--warm", type=int, default=0, help="processes that compile first")
    options.add_argument("--part", default="", help=argparse.SUPPRESS)
    options.add_argument("--list", action="store_true", help="kernels, by their time")
    given = options.parse_args()
    warnings.simplefilter("ignore")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    if given.device == "cpu":
        torch.set_num_threads(1)
    rows = []
    if given.json and os.path.exists(given.json):
        with open(given.json) as file:
            rows = [json.loads(line) for line in file]
    seen = {tuple(row[k] for k in KEYS) for row in rows}
    names = [n for n in FORMS if re.search(given.only, n)]
    chosen = [
        dict(zip(KEYS, key, strict=True))
        for key in product(names, (False, True), given.dtype.split(","), sizes_of(given.sizes))
        if key not in seen and (not key[1] or FORMS[key[0]].backward)
    ]
    if given.part:
        k, parts = map(int, given.part.split("/"))
        for row in chosen[k::parts]:
            measured(row, given.device, True)
        return
    if given.warm:
        command = [sys.executable, __file__, *sys.argv[1:], "--part"]
        parts = [subprocess.Popen([*command, f"{k}/{given.warm}"]) for k in range(given.warm)]
        for part in parts:
            part.wait()
    for row in chosen:
        row = measured(row, given.device, False, given.list)
        rows.append(row)
        shown = (
            f"{row['x']:7.2f}x {row['ours']:9.4f} ms {row['eager']:9.4f} ms  off {row['diff']:.1e}"
            if "x" in row
            else row.get("error") or row.get("skipped")
        )
        way = ", backward" if row["back"] else ""
        print(f"{row['op'] + way:32} {row['dtype']:5} {row['size']:5g} {shown}", flush=True)
        if given.json:
            with open(given.json, "a") as file:
                file.write(json.dumps(row) + "\n")
    summarize(rows)


def sizes_of(text: str) -> list[float]:
    return [float(size) for size in text.split(",")]


def summarize(rows: list[dict[str, Any]]) -> None:
    """Prints geometric means, and the forms that take twice eager mode's time."""
    for dtype, size, back in sorted({(r["dtype"], r["size"], r["back"]) for r in rows}):
        of = [r for r in rows if (r["dtype"], r["size"], r["back"]) == (dtype, size, back)]
        found = {r["op"]: r["x"] for r in of if "x" in r}
        if found:
            slow = {n: x for n, x in sorted(found.items(), key=lambda item: -item[1]) if x > 2}
            mean = statistics.geometric_mean(found.values())
            way = "backward" if back else "forward"
            print(f"{dtype} {size:g} {way}: geometric mean {mean:.2f} of {len(found)},", end=" ")
            print(f"{len(slow)} above 2x", *(f"{n} {x:.1f}" for n, x in slow.items()))
    for r in rows:
        if "error" in r:
            print(f"failed: {r['op']} {r['dtype']} {r['size']:g} {r['back']}: {r['error'][:200]}")


if __name__ == "__main__":
    main()
