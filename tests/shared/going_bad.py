"""Random runs of training that go bad at a random step: a NaN or an infinity in an input or a
param, or a gradient that an op on its way makes NaN.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import opstep

SMOOTH = ("tanh", "sigmoid", "gelu", "softplus", "relu", "silu")
HEAD = """\
param w: {t}[4, 3] = normal(std=0.5)
param v: {t}[3, 3] = normal(std=0.5)
param b: {t}[3] = normal(std=0.5)

graph loss(x: {t}[N, 4], keep: {t}[N, 3]) -> {t}[] {{
  h = matmul(x, w)
  a = add(h, b)
"""
# The slope of a root at 0 is infinite, and what is below it has none: 0 times infinity.
TAIL = """\
  kept = mul({last}, keep)
  squares = square(kept)
  sizes = sqrt(squares)
  l = mean(sizes)
  return l
}}
"""
OPTIMIZERS = {"sgd": {"lr": 0.05}, "adam": {"lr": 0.05}, "rmsprop": {"lr": 0.01}}


@dataclass
class Going:
    """A run: its program, and what each step was given."""

    program: opstep.Program
    graph: str
    given: list[tuple[dict[str, np.ndarray], dict[str, np.ndarray]]] = field(default_factory=list)


def program_of(rng: np.random.Generator) -> opstep.Program:
    """A step of training with a random body, type and optimizer."""
    lines, last = [], "a"
    for k in range(rng.integers(0, 4)):
        name = f"y{k}"
        if rng.random() < 0.3:
            lines.append(f"  {name} = matmul({last}, v)")
        elif rng.random() < 0.2:
            lines.append(f"  {name} = add({last}, {last})")
        else:
            lines.append(f"  {name} = {rng.choice(SMOOTH)}({last})")
        last = name
    text = HEAD + "\n".join([*lines, ""]) + TAIL
    dtype = str(rng.choice(["f32", "f32", "f16", "bf16", "f64"]))
    name = str(rng.choice(list(OPTIMIZERS)))
    program = opstep.loads(text.format(t=dtype, last=last), "random.opg")
    program = program.with_optimizer("loss", name, **OPTIMIZERS[name])
    program.reseed(int(rng.integers(1000)))
    return program


def steps_of(rng: np.random.Generator, program: opstep.Program) -> Iterator[dict[str, np.ndarray]]:
    """The inputs of each step; before it is given, something bad may be put into a param."""
    dtype = program.params["w"].dtype
    rows, steps = int(rng.integers(2, 6)), int(rng.integers(2, 7))
    bad_at, same = int(rng.integers(steps)), rng.random() < 0.3
    kind = str(rng.choice(["input", "param", "gradient"]))
    what: Any = rng.choice([np.nan, np.nan, np.inf, -np.inf])
    x = rng.standard_normal((rows, 4)).astype(dtype)
    for step in range(steps):
        if not same:
            x = rng.standard_normal((rows, 4)).astype(dtype)
        keep = np.ones((rows, 3), dtype)
        if step == bad_at and kind == "input":
            x = x.copy()
            x.reshape(-1)[rng.integers(x.size)] = what
        elif step == bad_at and kind == "gradient":
            keep[rng.integers(rows)] = 0
        elif step == bad_at:
            name = str(rng.choice(["w", "b"]))
            value = program.params[name]
            value.reshape(-1)[rng.integers(value.size)] = what
            program.params[name] = value
        yield {"x": x, "keep": keep}


def record(rng: np.random.Generator, path) -> Going:
    """Records such a run, with other settings each time."""
    going = Going(program_of(rng), "loss_step")
    program = going.program
    settings: Any = {"stats_every": int(rng.choice([1, 1, 2]))}
    settings |= {"stats": str(rng.choice(["all", "all", "all", "h,a,input:*"]))}
    settings |= {"keep_inputs": int(rng.choice([0, 0, 1, 2]))}
    how: Any = {"streams": int(rng.choice([1, 3])), "alloc": str(rng.choice(["fresh", "reuse"]))}
    with opstep.Recording(workspace=path, **settings) as recording:
        for inputs in steps_of(rng, program):
            params = {n: program.params[n].copy() for n in program.params}
            going.given.append((inputs, params))
            program.run(going.graph, inputs, recording=recording, **how)
    return going
