"""A program to debug at a terminal, and how what is printed is read."""

from __future__ import annotations

import re

PROGRAM = """\
param w: f32[3] = zeros()
state seen: i32[] = 0

graph main(x: f32[3]) -> f32[3] {
  a = add(x, 1.0)
  b = scaled(a)
  c = mul(b, 3.0)
  next = add(seen, 1)
  seen <- next
  return c
}

graph scaled(v: f32[3]) -> f32[3] {
  s = mul(v, 2.0)      at "model.py":2
  t = sub(s, 1.0)
  return t
}

graph count(x: f32[3]) -> f32[3] {
  y = while(x, test=small, body=double)
  z = log(y)
  return z
}

graph small(x: f32[3]) -> bool[] {
  m = max(x)
  more = less(m, 100.0)
  return more
}

graph double(x: f32[3]) -> f32[3] {
  y = mul(x, 2.0)
  return y
}

graph trouble(x: f32[3]) -> f32[3] {
  l = log(x)
  e = exp(x)
  y = add(l, e)
  positive = greater(x, 0.0)
  fine = all(positive)
  assert fine, "x is not positive"
  return y
}

graph endless(x: f32[3]) -> f32[3] {
  y = while(x, test=always, body=double, limit=1000000000)
  return y
}

graph always(x: f32[3]) -> bool[] {
  m = max(x)
  same = equal(m, m)
  return same
}
"""


def stands(out: str) -> list[int]:
    """The lines that markers stood at."""
    return [int(n) for n in re.findall(r"^=> +(\d+) ", out, re.MULTILINE)]
