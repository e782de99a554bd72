"""Running the command line in this process, and small programs to run."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from debugged_program import PROGRAM
from scripts import commands

from opstep.cli.main import main

SCALE = """\
param w: f32[3, 2] = normal(std=0.5)
state count: i32[] = 0

graph main(x: f32[N, 2], bias: f32[]) -> f32[N, 3], f32[N, 3] {
  y = linear(x, w)
  z = add(y, bias)
  n = add(count, 1)
  count <- n
  return y, z
}

graph double(x: f32[N]) -> f32[N] {
  y = mul(x, 2.0)
  return y
}
"""

COMPILING = re.compile(r"^compiling .*\(once: they are kept\)\n", re.MULTILINE)


@dataclass
class Outcome:
    """What a command line did. `out` and `err` are what it wrote."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def cli(capsys, tmp_path, monkeypatch):
    """Runs a command line in a folder of its own; whatever happens, no traceback may show."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: Any) -> Outcome:
        capsys.readouterr()
        code = main([str(a) for a in arguments])
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        assert "internal error" not in err
        # What a run says that compiles kernels depends on the runs before it.
        return Outcome(code, out, COMPILING.sub("", err))

    return run


@pytest.fixture
def terminal(monkeypatch):
    """Makes standard output a terminal of 80 columns, without colours, until the test ends."""

    def begin() -> None:
        monkeypatch.setenv("TERM", "dumb")
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)

    return begin


@pytest.fixture
def write(tmp_path):
    """Writes a file of the test's folder and gives its name."""

    def write(name: str, text: str | bytes) -> str:
        path: Path = tmp_path / name
        if isinstance(text, bytes):
            path.write_bytes(text)
        else:
            path.write_text(textwrap.dedent(text), encoding="utf-8")
        return name

    return write


@pytest.fixture
def scale(write) -> str:
    """A program with a param, a state and two graphs."""
    return write("scale.opg", SCALE)


@pytest.fixture
def debug(cli, write, monkeypatch):
    """Commands to a session on `graph` with x = 1, 2, 3; gives what was printed."""
    file = write("model.opg", PROGRAM)
    np.save("x.npy", np.array([1, 2, 3], "f4"))
    np.save("bad.npy", np.array([1, -2, 0], "f4"))

    def run(*commands, graph="main", x="x.npy", options=()):
        monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(commands) + "\n"))
        outcome = cli("debug", file, "-g", graph, "-i", f"x={x}", *options)
        assert outcome.code == 0, outcome.err
        assert "internal error" not in outcome.out
        return outcome.out

    return run


@pytest.fixture
def debug_script(tmp_path):
    """A session as a process; gives its exit code and what it printed."""

    def run(
        script: str, *given: str, batch: bool = True, options=(), arguments=(), pipe: str = "",
        name: str = "train.py",
    ):  # fmt: skip
        (tmp_path / name).write_text(script, encoding="utf-8")
        ended = subprocess.run(
            [sys.executable, "-m", "opstep", "debug", *commands(*given), *["--batch"] * batch,
             *options, name, *arguments],
            cwd=tmp_path, input=pipe, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        assert "internal error" not in ended.stdout
        return ended.returncode, ended.stdout

    return run


@pytest.fixture
def fresh():
    """PyTorch's compiler as at the start of a process."""
    torch = pytest.importorskip("torch")
    from opstep.frontends.torch import findings

    torch._dynamo.reset()
    findings.clear()
    yield
    findings.clear()
    torch._dynamo.reset()


@pytest.fixture
def script(tmp_path):
    """Writes a script; gives its name."""

    def write(text: str, name: str = "train.py") -> str:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(textwrap.dedent(text), encoding="utf-8")
        return name

    return write
