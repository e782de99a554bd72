"""The GPU's benchmarks: every figure beside its peers', taken in the same run.

    python3 benchmarks/gpu/run.py                   # all; writes results.json beside this file
    python3 benchmarks/gpu/run.py --only products --json /dev/stdout

It needs a GPU, PyTorch, and, for their rows, torchvision and transformers, CuPy, Triton, JAX and
nvcc. `docs/benchmarks.md` is made of the JSON file.
"""

from __future__ import annotations

import argparse
import importlib
import json
import platform
import subprocess
import sys
import traceback
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parent)]

from rows import GROUPS, Row  # noqa: E402 - found by the line above

from opstep.runtime.device.cuda.driver.driver import driver  # noqa: E402
from opstep.runtime.ir.errors import DeviceError  # noqa: E402

MODULES = (
    "launches",
    "kernels",
    "indexing",
    "convolutions",
    "attention",
    "networks",
    "torch_models",
    "training",
    "ranks",
    "startup",
)
PACKAGES = ("opstep", "numpy", "numba", "numba-cuda", "cuda-core", "cuda-bindings")
PEERS = (
    "torch",
    "torchvision",
    "transformers",
    "cupy-cuda13x",
    "cupy-cuda12x",
    "triton",
    "jax",
    "nvidia-cudnn-cu13",
)
COMMAND = "make bench-gpu"


def machine() -> dict[str, str]:
    """What the figures were taken on."""
    found = {"date": datetime.now(UTC).strftime("%Y-%m-%d"), "python": platform.python_version()}
    asked = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader", "--id=0"]
    told = subprocess.run(asked, capture_output=True, text=True).stdout.strip()
    found["gpu"], _, found["driver"] = (part.strip() for part in told.partition(","))
    for name in (*PACKAGES, *PEERS):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    import torch

    found["cuda"] = torch.version.cuda or ""
    nvcc = subprocess.run("nvcc --version", shell=True, capture_output=True, text=True).stdout
    found["nvcc"] = nvcc.partition("release ")[2].partition(",")[0] or "absent"
    return found


def record(row: Row) -> dict:
    """As it is written to JSON."""
    return {**row._asdict(), "ratio": row.ratio}


def line(row: Row) -> str:
    if row.error:
        return f"{row.what:58} failed: {row.error}"
    peer = "" if row.peer is None else f"{row.peer:11.4g} {row.peer_name[:26]:26} {row.ratio:6.3f}"
    verdict = {None: "", True: "reached", False: "MISSED"}[row.reached]
    return f"{row.what[:58]:58} {row.ours:10.4g} {row.unit:8} {peer:46} {row.bar:38} {verdict}"


def measured(wanted: list[str]) -> Iterator[Row]:
    """The rows of the groups whose name holds one of the texts; a group that fails says why."""
    for name, measure in sorted(GROUPS, key=lambda g: MODULES.index(g[1].__module__)):
        if wanted and not any(text in name for text in wanted):
            continue
        print(f"-- {name}", flush=True)
        try:
            yield from measure()
        except Exception as error:  # a table with one broken line is worth more than none
            traceback.print_exc(limit=-6)
            yield Row(name, 0, "", reached=False, error=f"{type(error).__name__}: {error}")


def main() -> int:
    parser = argparse.ArgumentParser(description="The GPU's figures beside their peers'.")
    parser.add_argument("--only", action="append", default=[], help="groups whose name holds this")
    parser.add_argument("--json", type=Path, default=HERE / "results.json", help="where to write")
    parser.add_argument("--strict", action="store_true", help="exit with 1 where a bar is missed")
    parser.add_argument("--max-autotune", action="store_true", help="inductor's mode: minutes more")
    options = parser.parse_args()
    try:
        driver()
    except DeviceError as error:
        print(error, file=sys.stderr)
        return 3
    for name in MODULES:
        importlib.import_module(name)
    if options.max_autotune:
        sys.modules["torch_models"].inductor_mode = "max-autotune"  # pyright: ignore
    host = machine()
    print(", ".join(f"{k} {v}" for k, v in host.items()), flush=True)
    some = "".join(f' --only "{name}"' for name in options.only)
    command = f"python benchmarks/gpu/run.py{some}" if some else COMMAND
    rows: list[Row] = []
    for row in measured(options.only):
        rows.append(row)
        print(line(row), flush=True)
        found = {"command": command, "machine": host, "rows": [record(row) for row in rows]}
        options.json.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    missed = [row.what for row in rows if row.reached is False]
    print(f"{len(rows)} rows, {len(missed)} missed: {'; '.join(missed)}")
    return 1 if options.strict and missed else 0


if __name__ == "__main__":
    sys.exit(main())
