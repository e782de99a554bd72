"""The set-ups of docs/editors.md, and the program that they are tried on."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from opstep.runtime.device.cache import Compiler

DOC = Path(__file__).parents[2] / "docs" / "editors.md"
HERE = Path(__file__).parent
PATIENCE_S = 180

MODEL = """graph main(scores: f32[N, K]) -> f32[] {
  sharp = mul(scores, 60.0)
  p = softmax(sharp)
  each = information(p)
  mean = mean(each)
  return mean
}

graph information(p: f32[N, K]) -> f32[N] {
  lg = log(p)
  h = mul(p, lg)
  total = sum(h, axes=[1])
  entropy = neg(total)
  return entropy
}
"""
BROKEN = MODEL.replace("softmax(sharp)", "sofmax(sharp)").replace(
    "  mean = mean", "  mean  =  mean"
)


def block(language: str, number: int) -> str:
    """A block of code of the page, as it stands there."""
    found = re.findall(rf"^```{language}\n(.*?)^```", DOC.read_text("utf-8"), re.M | re.S)
    return found[number]


def needs(program: str) -> str:
    """The path of an editor; the test is skipped where it is not installed."""
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"{program} is not installed")
    return found


def plugin(variable: str, what: str) -> Path:
    """The folder of a plugin that is named by a variable of the environment."""
    folder = os.environ.get(variable)
    if not folder:
        pytest.skip(f"{variable} does not say where {what} is")
    return Path(folder)


def environment(home: Path) -> dict[str, str]:
    """Variables for an editor: a home of its own, this opstep first on the path, and the kernels
    that are compiled already.
    """
    command = home / "bin" / "opstep"
    command.parent.mkdir(parents=True, exist_ok=True)
    root = Path(__file__).parents[2]
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m opstep "$@"\n')
    command.chmod(0o755)
    path = f"{command.parent}{os.pathsep}{os.environ['PATH']}"
    kept = {k: v for k, v in os.environ.items() if not k.startswith("XDG_")}
    packages = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
    kept["OPSTEP_CACHE"] = str(Compiler.cache_folder())
    return {
        **kept,
        "PYTHONPATH": packages,
        "HOME": str(home),
        "PATH": path,
        "TERM": "xterm-256color",
    }


def run(arguments: list[str], home: Path, out: Path) -> dict[str, Any]:
    """Runs an editor without a screen; what its script has found out."""
    found = subprocess.run(
        arguments, env={**environment(home), "OUT": str(out)}, cwd=home, timeout=PATIENCE_S,
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert out.is_file(), found.stdout + found.stderr
    return json.loads(out.read_text("utf-8"))


def check_journey(found: dict[str, Any]) -> None:
    """Holds what an editor told of the debugger against the way that it was led: forwards, back, in
    and out, to the begin, and on to a breakpoint.
    """
    assert found["stops"] == [
        "entry: main 2",
        "step over: main 3",
        "step over: main 4",
        "step back: main 3",
        "step over: main 4",
        "step into: each = information 10",
        "step out: main 5",
        "reverse continue: main 2",
        "continue: each = information 12",
    ]
    assert found["variables"]["h"].startswith("f32[8, 4]")
    assert 0.25 < float(found["evaluated"].split()[0]) <= 1
