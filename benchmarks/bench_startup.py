"""Whole processes: what a user waits for between the return key and the answer."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from harness import SCRATCH, Timed, at_most, bench, environment

ROOT = Path(__file__).parent.parent
DATA = ROOT / "opstep" / "data"

BARE = "python -c pass"
NUMPY = "python -c 'import numpy'"
TORCH = "python -c 'import torch', the same network"

TORCH_LENET = """
import torch, numpy as np
from torch.nn import functional as F
g = torch.Generator().manual_seed(0)
shapes = (6, 1, 3, 3), (16, 6, 3, 3), (120, 64), (84, 120), (10, 84)
w = [torch.randn(s, generator=g) for s in shapes]
x = torch.from_numpy(np.load(%r)["test_images"]).float()[:, None] * 0.0625
with torch.no_grad():
    x = F.max_pool2d(F.relu(F.conv2d(x, w[0], padding=1)), 2)
    x = F.max_pool2d(F.relu(F.conv2d(x, w[1], padding=1)), 2).flatten(1)
    x = F.relu(F.linear(F.relu(F.linear(x, w[2])), w[3])) @ w[4].T
    print(x.softmax(1).argmax(1)[:5])
"""


def process(*arguments: str, cache: Path | None = None):
    """A callable that runs a Python process to its end; it must end well."""
    given = environment()
    if cache is not None:
        given["OPSTEP_CACHE"] = str(cache)

    def run() -> None:
        done = subprocess.run(
            [sys.executable, *arguments], env=given, capture_output=True, text=True
        )
        if done.returncode:
            raise RuntimeError(done.stderr.strip()[-300:])

    return run


@bench("opstep --help", peer=BARE, bars=[at_most(0.3, "s")])
def help_text():
    ours = process("-m", "opstep", "--help")
    return Timed(ours, process("-c", "pass"), unit="s", rounds=9, least_s=0)


@bench("opstep check, 1,000 lines", peer=NUMPY, bars=[at_most(0.9, "s")])
def check():
    path = SCRATCH / "thousand.opg"
    path.write_text(thousand_lines())
    ours = process("-m", "opstep", "check", str(path))
    return Timed(ours, process("-c", "import numpy"), unit="s", rounds=7, least_s=0)


def thousand_lines() -> str:
    """A net of the usual kind: 198 layers of five lines, and what stands around them."""
    lines = ["param w: f32[64, 64] = normal(std=0.1)", "param b: f32[64] = zeros()", ""]
    lines += ["graph main(x0: f32[N, 64]) -> f32[N, 64] {"]
    for k in range(198):
        lines += [
            f"  # layer {k}",
            f"  h{k} = linear(x{k}, w, b)",
            f"  a{k} = gelu(h{k})",
            f"  n{k} = layer_norm(a{k}, shape=[64])",
            f"  x{k + 1} = add(n{k}, x{k})",
        ]
    lines += ["  return x198", "}"]
    return "\n".join([*lines, "# end", "# of", "# file", ""])


def lenet_run(cache: Path):
    return process(
        "-m", "opstep", "run", str(DATA / "lenet.opg"),
        "--params", str(DATA / "lenet.safetensors"),
        "--input", f"images={DATA / 'digits.npz'}:test_images",
        cache=cache,
    )  # fmt: skip


def torch_lenet():
    return process("-c", TORCH_LENET % str(DATA / "digits.npz"))


@bench("opstep run LeNet, compile cache empty", peer=TORCH, bars=[at_most(12, "s")])
def lenet_cold():
    def ours() -> None:
        with tempfile.TemporaryDirectory() as cache:
            lenet_run(Path(cache))()

    return Timed(ours, torch_lenet(), unit="s", rounds=3, least_s=0)


@bench("opstep run LeNet, compile cache warm", peer=TORCH, bars=[at_most(2, "s")])
def lenet_warm():
    cache = SCRATCH / "kernels"
    return Timed(lenet_run(cache), torch_lenet(), unit="s", rounds=5, least_s=0)
