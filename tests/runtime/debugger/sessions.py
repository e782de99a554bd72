"""A program to debug, and its session."""

from __future__ import annotations

import textwrap

import numpy as np

import opstep
from opstep.api.debugging import Debugger

TEXT = textwrap.dedent("""\
    state seen: i32[] = 0

    graph main(x: f32[N]) -> f32[N] {
      a = add(x, 1.0)
      b = scaled(a)
      c = mul(b, 3.0)
      next = add(seen, 1)
      seen <- next
      return c
    }

    graph scaled(v: f32[N]) -> f32[N] {
      s = mul(v, 2.0)      at "model.py":12
      t = sub(s, 1.0)
      return t
    }

    graph count(x: f32[N]) -> f32[N] {
      y = while(x, test=small, body=double)
      return y
    }

    graph small(x: f32[N]) -> bool[] {
      m = max(x)
      more = less(m, 100.0)
      return more
    }

    graph double(x: f32[N]) -> f32[N] {
      y = mul(x, 2.0)
      return y
    }
    """)
X = np.array([1.0, 2.0, 3.0], "f4")


def lines_of(text):
    """The numbers of a program's lines, by their first words."""
    return {line.strip().split(" ")[0]: k for k, line in enumerate(text.splitlines(), 1)}


LINES = lines_of(TEXT)


def debug(file, graph="main", **options):
    options.setdefault("stop_on_entry", True)
    return Debugger(opstep.load(file), graph, {"x": X}, **options)


def where(debugger):
    return [(f.name, f.line) for f in debugger.stack()]
