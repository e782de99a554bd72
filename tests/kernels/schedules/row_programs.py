"""Composites of rows run as one op, and their graphs run op by op: bits of both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import opstep
from opstep.kernels.schedules.cuda import parts, teams
from opstep.kernels.schedules.rows import RowComposite
from opstep.runtime.ir.graph import Module
from opstep.runtime.ir.op import OPS, complete
from opstep.runtime.ir.printer import print_module
from opstep.runtime.ir.types import DTYPES, TensorType, dtype_of
from opstep.runtime.transforms.composite import definition
from tests.kernels.pointwise.fused_programs import bits

FLOATS = ("f32", "f64", "bf16", "f16")
EXTREMES = (np.inf, -np.inf, np.nan, 0.0, -0.0, 1e38, -1e38, 3e-39, 1e-45)
RUNS: list[dict[str, Any]] = [{"mode": "debug"}, {"threads": 1}, {"threads": 3}]


def drawn(rng: np.random.Generator, shape: Sequence[int], dtype: str) -> np.ndarray:
    """Normal numbers of some size around some centre, a few extremes among them or not."""
    x = rng.standard_normal(shape) * rng.choice([1, 30, 1e-3]) + rng.choice([0, 0, 1e4])
    if x.size and rng.random() < 0.5:
        places = rng.integers(0, x.size, max(1, x.size // 50))
        x.reshape(-1)[places] = rng.choice(EXTREMES[rng.integers(0, 3) :], len(places))
    if rng.random() < 0.1:
        x = np.copysign(0.0, x)
    with np.errstate(all="ignore"):
        return x.astype(DTYPES[dtype].numpy)


def differing(name: str, arrays: Sequence[np.ndarray], attrs: dict[str, Any]) -> list[str]:
    """The ways to run an op whose bits are not those of its graph run op by op."""
    op: Any = OPS[name]
    attrs = complete(op, attrs)
    types: list[TensorType | None] = [TensorType(dtype_of(a.dtype), a.shape) for a in arrays]
    types += [None] * (len(op.operands) - len(types))
    graph = definition(op, types, attrs).graphs[op.name].graph
    text = print_module(Module((graph,))).replace(f"graph {name}(", "graph main(", 1)
    given = {b.name.text: np.negative(a) for b, a in zip(graph.inputs, arrays, strict=True)}
    operands = list(given)
    results = [f"result{k}" for k in range(len(graph.results))]
    turned = [f"  n{k} = neg({o})" for k, o in enumerate(operands)]
    call = [f"n{k}" for k in range(len(operands))]
    call += [f"{k}={_written(v)}" for k, v in attrs.items() if v is not None]
    lines = [*turned, f"  {', '.join(results)} = {name}({', '.join(call)})"]
    whole = "\n".join([text.split("{")[0] + "{", *lines, f"  return {', '.join(results)}", "}", ""])
    steps = opstep.loads(text).run("main", dict(zip(given, arrays, strict=True)), mode="debug")
    expected = [bits(a) for a in steps.outputs]
    program = opstep.loads(whole)  # whose op may take over the buffers of what was negated
    found = [([bits(a) for a in program.run("main", given, **run).outputs], run) for run in RUNS]
    return [str(run) for got, run in found if got != expected]


def _written(value: Any) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    return f"[{', '.join(map(_written, value))}]" if isinstance(value, tuple) else str(value)


@contextmanager
def declared(signature: str, infer: Any, define: Any) -> Iterator[str]:
    """Within, there is an op of this graph, which may work in place."""
    body = {"signature": signature, "infer": infer, "define": define, "inplace": (0,)}
    op = type("of_a_test", (RowComposite,), body)
    try:
        yield op.name
    finally:
        del OPS[op.name]


def shared_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """On CUDA every row is too long to be held: warps share it, each with a few tiles."""
    monkeypatch.setattr(teams, "MOST_THREADS", 1)
    for name, number in {"THREADS": 32, "HELD": 8, "BLOCKS": 8}.items():
        monkeypatch.setattr(parts, name, number)
