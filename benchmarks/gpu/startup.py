"""Whole processes on the GPU: from the return key to the first result of LeNet."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from rows import Row, group

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "opstep" / "data"
MODULE = ["-m", "opstep", "run", str(DATA / "lenet.opg"), "--device", "cuda"]
MODULE += ["--params", str(DATA / "lenet.safetensors")]
MODULE += ["--input", f"images={DATA / 'digits.npz'}:test_images"]

TORCH = """
import torch, numpy as np
from torch.nn import functional as F
g = torch.Generator().manual_seed(0)
shapes = (6, 1, 3, 3), (16, 6, 3, 3), (120, 64), (84, 120), (10, 84)
w = [torch.randn(s, generator=g).cuda() for s in shapes]
x = torch.from_numpy(np.load(%r)["test_images"]).cuda().float()[:, None] * 0.0625
with torch.no_grad():
    x = F.max_pool2d(F.relu(F.conv2d(x, w[0], padding=1)), 2)
    x = F.max_pool2d(F.relu(F.conv2d(x, w[1], padding=1)), 2).flatten(1)
    x = F.relu(F.linear(F.relu(F.linear(x, w[2])), w[3])) @ w[4].T
    print(x.softmax(1).argmax(1)[:5].cpu())
"""


def process(*arguments: str, cache: str = "") -> float:
    """Seconds that a Python process takes; it must end well."""
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), environment.get("PYTHONPATH", "")])
    if cache:
        environment["OPSTEP_CACHE"] = cache
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(done.stderr.strip()[-300:])
    return time.perf_counter() - start


@group("start")
def cold_start() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as cache:
        empty = process(*MODULE, cache=cache)
        turns = [
            (process(*MODULE, cache=cache), process("-c", TORCH % str(DATA / "digits.npz")))
            for _ in range(5)
        ]
    ours, theirs = (statistics.median(side) for side in zip(*turns, strict=True))
    what = "cold start to first result of LeNet, warm kernel cache"
    limit = min(2.5, theirs / 2)
    bar = f"≤ {limit:.2f} s (2.5 s, or half of PyTorch)"
    yield Row(what, ours, "s", "PyTorch, import to result", theirs, bar, ours <= limit)
    yield Row("the same, empty kernel cache", empty, "s", "PyTorch, import to result", theirs)
