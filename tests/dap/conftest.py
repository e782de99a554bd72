"""Programs to debug, and clients that have one running."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from dap.client import Client

LOOPS = """\
param w: f32[4] = ones()

graph halve(x: f32[N]) -> f32[N] {
  y = mul(x, 0.5)  # break: halving
  return y
}

graph is_large(x: f32[N]) -> bool[] {
  m = max(x)
  large = greater(m, 1.0)
  return large
}

graph scaled(x: f32[4]) -> f32[4] {
  s = mul(x, w)  # break: scaling
  t = add(s, 1.0)
  return t
}

graph main(x: f32[4]) -> f32[4] {
  a = scaled(x)  # break: calling
  b = while(a, test=is_large, body=halve)  # break: looping
  c = log(b)  # break: log
  d = scaled(c)
  return d
}
"""

# Runs until it is stopped: for pausing, and for clients that leave.
ENDLESS = """\
graph more(x: f32[4], n: i32[]) -> f32[4], i32[] {
  y = mul(x, 1.0)
  m = add(n, 0)
  return y, m
}

graph always(x: f32[4], n: i32[]) -> bool[] {
  goes_on = less(n, 1)
  return goes_on
}

graph main(x: f32[4]) -> f32[4] {
  zero = zeros(shape=[], dtype=i32)
  y, m = while(x, zero, test=always, body=more, limit=1000000000)
  return y
}
"""


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str], Path]:
    """Writes a program to a file."""

    def write(text: str, name: str = "model.opg") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.fixture
def loops(program) -> Path:
    return program(LOOPS)


@pytest.fixture
def endless(program) -> Path:
    return program(ENDLESS)


@pytest.fixture
def client() -> Iterator[Client]:
    """A client whose session must have ended well."""
    with Client.over_socket() as made:
        yield made


@pytest.fixture
def session():
    """Of a server for scripts."""
    from dap.test_python_sessions import Session

    with Session.over_stdio("--script") as one:
        yield one
