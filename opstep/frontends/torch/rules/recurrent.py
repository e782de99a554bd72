"""LSTM, GRU and plain recurrent layers: a graph for each layer and direction, a loop over time.

PyTorch's own definitions of these are not used: they repeat the cell for each step, and that of
LSTM is wrong in some versions (2.11, with `batch_first`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from opstep.frontends.recurrent import layer as one_layer
from opstep.frontends.recurrent import row
from opstep.frontends.torch.body import Body, Var
from opstep.frontends.torch.errors import Untranslatable
from opstep.frontends.torch.rules.registry import rule

State = tuple[Var, ...]  # h, and c of an LSTM
# From what the input and the state give to the gates, and the state: the next state, and by name
# what a gradient will want to know of the step.
Step = Callable[[Body, Var, Var, State], tuple[State, dict[str, Var]]]


@dataclass(frozen=True)
class Cell:
    """`gates`: how many rows of the weights each element of the state has. `kept`: what the steps
    keep for a gradient, by name; how many times the state's size each of them has.
    """

    name: str
    gates: int
    step: Step
    kept: Mapping[str, int]

    @property
    def states(self) -> tuple[str, ...]:
        return ("h", "c") if self.name == "lstm" else ("h",)


class Weights(NamedTuple):
    """Of one layer and direction; `projection` is that of an LSTM with ``proj_size``."""

    input: Var
    state: Var
    input_bias: Var | None = None
    state_bias: Var | None = None
    projection: Var | None = None

    @staticmethod
    def of(params: Sequence[Var], has_biases: bool) -> Weights:
        biases = tuple(params[2:4]) if has_biases else (None, None)
        return Weights(params[0], params[1], *biases, *params[4 if has_biases else 2 :])

    def named(self) -> dict[str, Var]:
        """Those that there are, under the names that they have in a layer's graph."""
        names = ("w_x", "w_h", "b_x", "b_h", "w_p")
        return {n: w for n, w in zip(names, self, strict=True) if w is not None}


# --- cells ----------------------------------------------------------------------------------------


def parts(b: Body, gates: Var, names: str) -> list[Var]:
    """The gates of a step, or of all."""
    count = len(names.split())
    found = b.split(gates, sizes=[gates.shape[-1] // count] * count, axis=gates.type.rank - 1)
    return [b.titled(n, v) for n, v in zip(names.split(), found, strict=True)]


def opened(b: Body, gates: Var) -> list[Var]:
    """The gates of an LSTM: i, f, g, o."""
    found = parts(b, gates, "a_i a_f a_g a_o")
    ops = ("sigmoid", "sigmoid", "tanh", "sigmoid")
    return [b.named(n, op, v) for n, op, v in zip("ifgo", ops, found, strict=True)]


def _lstm(b: Body, x: Var, r: Var, state: State) -> tuple[State, dict[str, Var]]:
    gates = b.named("gates", "add", x, r)
    i, f, g, o = opened(b, gates)
    c = b.named("c_new", "add", b.mul(f, state[1]), b.mul(i, g))
    h = b.named("h_new", "mul", o, b.tanh(c))
    return (h, c), {"gates": gates, "cells": c}


def blended(b: Body, x: Var, r: Var) -> list[Var]:
    """The gates of a GRU, r, z and n, and what the state gives to n."""
    xr, xz, xn = parts(b, x, "x_r x_z x_n")
    hr, hz, hn = parts(b, r, "h_r h_z h_n")
    reset = b.named("r", "sigmoid", b.add(xr, hr))
    update = b.named("z", "sigmoid", b.add(xz, hz))
    new = b.named("n", "tanh", b.add(xn, b.mul(reset, hn)))
    return [reset, update, new, hn]


def _gru(b: Body, x: Var, r: Var, state: State) -> tuple[State, dict[str, Var]]:
    _, update, new, _ = blended(b, x, r)
    h = b.named("h_new", "add", new, b.mul(update, b.sub(state[0], new)))
    return (h,), {"recurrent": r}


def _plain(op: str) -> Step:
    return lambda b, x, r, state: ((b.named("h_new", op, b.add(x, r)),), {})


CELLS = {
    cell.name: cell
    for cell in (
        Cell("lstm", 4, _lstm, {"gates": 4, "cells": 1}),
        Cell("gru", 3, _gru, {"recurrent": 3}),
        Cell("rnn_tanh", 1, _plain("tanh"), {}),
        Cell("rnn_relu", 1, _plain("relu"), {}),
    )
}


# --- loops ----------------------------------------------------------------------------------------


def layer(
    b: Body, cell: Cell, x: Var, state: State, weights: Weights, backwards: bool, keep: bool = False
) -> dict[str, Var]:
    """One layer in one direction: x [T, N, F]; its outputs y [T, N, H], its last state, and where
    that is asked for what it keeps for a gradient.
    """

    def step(b: Body, t: Var, given: dict[str, Var]) -> dict[str, Var]:
        r = b.named("r", "linear", given["h"], given["w_h"], given.get("b_h"))
        before = tuple(given[n] for n in cell.states)
        (h, *rest), kept = cell.step(b, row(b, given["gates_x"], t, "x"), r, before)
        if "w_p" in given:
            h = b.named("h_new", "linear", h, given["w_p"])
        return dict(zip(cell.states, (h, *rest), strict=True)) | kept

    title = cell.name + ("_reverse" if backwards else "")
    operands = {"x": x, **dict(zip(cell.states, state, strict=True)), **weights.named()}
    size = weights.state.shape[0] // cell.gates
    kept = {name: times * size for name, times in cell.kept.items() if keep}
    with_gates = keep and cell.name == "gru"
    found = one_layer(b, title, cell.states, operands, step, backwards, kept, with_gates)
    for name, own in {"y": "output", "h": "h_n", "c": "c_n"}.items():  # as PyTorch calls them
        if name in found:
            b.titled(own, found[name])
    return found


# --- what PyTorch exports -------------------------------------------------------------------------


class _Layers(NamedTuple):
    """What all recurrent layers are called with."""

    has_biases: bool
    count: int
    dropout: float
    train: bool
    bidirectional: bool
    batch_first: bool


@rule("lstm.input")
def lstm(b: Body, x, states, params, *how):
    return _run(b, x, states, params, _Layers(*how), CELLS["lstm"])


def _with_one_state(cell: Cell):
    def translated(b: Body, x, state, params, *how):
        return _run(b, x, [state], params, _Layers(*how), cell)

    return translated


for _name in ("gru", "rnn_tanh", "rnn_relu"):
    rule(f"{_name}.input")(_with_one_state(CELLS[_name]))


@rule("lstm.data", "gru.data", "rnn_tanh.data", "rnn_relu.data")
def packed(b: Body, *_):
    raise Untranslatable("packed sequences: their lengths are data; pass padded ones instead")


def _run(
    b: Body, x: Var, states: Sequence[Var], params: Sequence[Var], how: _Layers, cell: Cell
) -> tuple[Var, ...]:
    """The outputs of the last layer, then the last states, each [layers * directions, ...]."""
    if how.train and how.dropout and how.count > 1:
        raise Untranslatable("dropout between recurrent layers: export the model in eval mode")
    if how.batch_first:
        x = b.transpose(x, perm=[1, 0, 2])
    directions = 1 + how.bidirectional
    each = len(params) // (how.count * directions)
    last: list[State] = []
    for number in range(how.count):
        sides = []
        for side in range(directions):
            k = number * directions + side
            named = zip(cell.states, states, strict=True)
            start = tuple(b.named(f"{n}_0", "select", s, index=k) for n, s in named)
            weights = Weights.of(params[k * each : (k + 1) * each], how.has_biases)
            found = layer(b, cell, x, start, weights, bool(side))
            sides.append(found["y"])
            last.append(tuple(found[n] for n in cell.states))
        x = sides[0] if len(sides) == 1 else b.concat(*sides, axis=2)
    y = b.transpose(x, perm=[1, 0, 2]) if how.batch_first else x
    return y, *(b.stack(*of_layers) for of_layers in zip(*last, strict=True))
