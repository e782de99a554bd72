"""Recurrent layers: a graph for each layer and direction, which is a loop over time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from opstep.frontends.building import Turn
from opstep.runtime.ir.dims import Dim
from opstep.runtime.transforms.builder import Var


def row(b: Any, series: Var, t: Var, name: str) -> Var:
    return b.named(name, "gather", series, t, axis=0)


def put(b: Any, series: Var, t: Var, value: Var, name: str) -> Var:
    """The series with another row at t: within a loop it is written where it is."""
    return b.named(name, "scatter_nd", series, b.reshape(t, shape=[1]), value)


def series_like(b: Any, name: str, x: Var, size: Any) -> Var:
    """A series of zeros, as long as x."""
    return b.named(name, "zeros", shape=[*x.shape[:2], size], dtype=x.dtype)


def called(
    b: Any, title: str, operands: Mapping[str, Var],
    write: Callable[[Any, dict[str, Var]], Mapping[str, Var]],
) -> dict[str, Var]:  # fmt: skip
    """Calls a graph: ``write(body, operands by name)`` gives its results by name."""
    names: list[str] = []

    def written(b: Any, *values: Var) -> list[Var]:
        found = write(b, dict(zip(operands, values, strict=True)))
        names[:] = found
        return list(found.values())

    part = b.part(title, [(n, v.type) for n, v in operands.items()], written)
    results = b.call(part.name, list(operands.values()), [r.type for r in part.results])
    return {n: b.titled(n, v) for n, v in zip(names, results, strict=True)}


def layer(
    b: Any, title: str, states: Sequence[str], operands: Mapping[str, Var], step: Turn,
    backwards: bool, kept: Mapping[str, Dim] | None = None, with_gates: bool = False,
) -> dict[str, Var]:  # fmt: skip
    """One layer in one direction, by name: its outputs y [T, N, H], its last `states`, series of
    what is `kept` of each step, and `gates_x` [T, N, G], what the input gives to the gates.

    `operands`: x [T, N, F], the states ("h" [N, H] first), weights `w_x` [G, F] and `b_x` for the
    input, and what `step` reads. That gives the next states, "y" where it is not h, and rows of
    what is kept, whose sizes `kept` has.
    """
    kept = kept or {}

    def write(b: Any, given: dict[str, Var]) -> dict[str, Var]:
        x = given["x"]
        gates = b.named("gates_x", "linear", x, given["w_x"], given.get("b_x"))
        carried = {n: given[n] for n in states}
        for name, size in {"y": given["h"].shape[-1], **kept}.items():
            carried[name] = series_like(b, name, x, size)
        carried["gates_x"] = gates
        carried |= {n: v for n, v in given.items() if n not in ("x", "w_x", "b_x", *states)}
        last = b.over_time(title, x.shape[0], carried, turn, backwards)
        found = {n: last[n] for n in ("y", *states, *kept)}
        return found | ({"gates_x": gates} if with_gates else {})

    def turn(b: Any, t: Var, given: dict[str, Var]) -> dict[str, Var]:
        found = step(b, t, given)
        rows = {"y": found.get("y", found["h"])} | {n: found[n] for n in kept}
        written = {n: put(b, given[n], t, v, f"{n}_new") for n, v in rows.items()}
        return {n: found[n] for n in states} | written

    return called(b, title, operands, write)
