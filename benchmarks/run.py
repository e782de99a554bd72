"""Runs the benchmarks and prints our figures beside their peers', taken in the same run.

python benchmarks/run.py                       # all
python benchmarks/run.py --only matmul --only LeNet
python benchmarks/run.py --json figures.json --strict
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from harness import BENCHMARKS, Benchmark, Outcome, judge
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

HERE = Path(__file__).resolve().parent
PACKAGES = ("opstep", "numpy", "numba", "torch")


def discover() -> list[Benchmark]:
    """Everything that the files bench_*.py declare, in the order of their names."""
    for path in sorted(HERE.glob("bench_*.py")):
        importlib.import_module(path.stem)
    return BENCHMARKS


def machine() -> dict[str, str]:
    """What the figures were taken on."""
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(
            (x.split(":", 1)[1].strip() for x in lines if x.startswith("model name")), model
        )
    except OSError:
        pass  # not Linux: the name that platform gives will do
    found = {"cpu": model, "cores": str(os.cpu_count()), "python": platform.python_version()}
    found["load"] = f"{os.getloadavg()[0]:.1f}"
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "absent"
    return found


def figure(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    digits = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{digits} {unit}".rstrip()


def table(outcomes: list[Outcome]) -> Table:
    out = Table(title="Benchmarks: ours beside the peer's, medians of runs taken by turns")
    for heading in ("what", "ours", "peer", "peer is", "ours/peer", "bar", ""):
        out.add_column(
            heading, justify="right" if heading in ("ours", "peer", "ours/peer") else "left"
        )
    for o in outcomes:
        if o.error:
            out.add_row(o.what, "", "", o.peer_name, "", "", "[red]failed")
            continue
        ratio = f"{o.ours / o.peer:.2f}" if o.peer else ""
        verdicts = ["[green]reached" if ok else "[red]missed" for _, ok in o.bars]
        bars = "\n".join(text for text, _ in o.bars)
        out.add_row(
            o.what, figure(o.ours, o.unit), figure(o.peer, o.unit), o.peer_name, ratio, bars,
            "\n".join(verdicts),
        )  # fmt: skip
    return out


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Our figures beside their peers', in the same run."
    )
    parser.add_argument(
        "--only", action="append", default=[], help="those whose name holds this text"
    )
    parser.add_argument("--list", action="store_true", help="name the benchmarks and stop")
    parser.add_argument("--json", type=Path, help="write the figures to this file as well")
    parser.add_argument("--strict", action="store_true", help="exit with 1 where a bar is missed")
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 160)
    wanted = [
        b for b in discover()
        if not options.only or any(text.lower() in b.what.lower() for text in options.only)
    ]  # fmt: skip
    if options.list:
        for b in wanted:
            console.print(f"{b.what}  [dim]{'; '.join(map(str, b.bars))}", highlight=False)
        return 0
    host = machine()
    console.print(", ".join(f"{k} {v}" for k, v in host.items()), style="dim", highlight=False)
    outcomes = []
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("", total=len(wanted))
        for b in wanted:
            progress.update(task, description=b.what)
            outcomes.append(judge(b))
            progress.advance(task)
    console.print(table(outcomes))
    for o in outcomes:
        if o.error:
            console.print(f"{o.what}: {o.error}", style="red", markup=False)
    if options.json:
        record = {"machine": host, "benchmarks": [o.record() for o in outcomes]}
        options.json.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n")
    missed = [o.what for o in outcomes if not o.reached]
    return 1 if options.strict and missed else 0


if __name__ == "__main__":
    sys.exit(main())
