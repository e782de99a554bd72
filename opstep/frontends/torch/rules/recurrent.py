"""LSTM, GRU and plain recurrent layers, a few statements a step.

PyTorch's own definitions of these are not used: that of LSTM is wrong in some versions (2.11, with
`batch_first`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from opstep.frontends.torch.body import Body, Var
from opstep.frontends.torch.errors import Untranslatable
from opstep.frontends.torch.rules.registry import rule

State = tuple[Var, ...]  # h, and c of an LSTM
# From what the input and the state give to the gates, and the state, the next state.
Cell = Callable[[Body, Var, Var, State], State]


class _Layers(NamedTuple):
    """What all recurrent layers are called with."""

    has_biases: bool
    count: int
    dropout: float
    train: bool
    bidirectional: bool
    batch_first: bool


def _lstm(b: Body, x: Var, h: Var, state: State) -> State:
    size = x.shape[-1] // 4
    i, f, g, o = b.split(b.add(x, h), sizes=[size] * 4, axis=-1)
    c = b.add(b.mul(b.sigmoid(f), state[1]), b.mul(b.sigmoid(i), b.tanh(g)))
    return b.mul(b.sigmoid(o), b.tanh(c)), c


def _gru(b: Body, x: Var, h: Var, state: State) -> State:
    size = x.shape[-1] // 3
    xr, xz, xn = b.split(x, sizes=[size] * 3, axis=-1)
    hr, hz, hn = b.split(h, sizes=[size] * 3, axis=-1)
    reset, update = b.sigmoid(b.add(xr, hr)), b.sigmoid(b.add(xz, hz))
    new = b.tanh(b.add(xn, b.mul(reset, hn)))
    return (b.add(new, b.mul(update, b.sub(state[0], new))),)


def _plain(op: str) -> Cell:
    return lambda b, x, h, state: (getattr(b, op)(b.add(x, h)),)


@rule("lstm.input")
def lstm(b: Body, x, states, params, *how):
    return _run(b, x, states, params, _Layers(*how), _lstm)


def _with_one_state(cell: Cell):
    def translated(b: Body, x, state, params, *how):
        return _run(b, x, [state], params, _Layers(*how), cell)

    return translated


rule("gru.input")(_with_one_state(_gru))
rule("rnn_tanh.input")(_with_one_state(_plain("tanh")))
rule("rnn_relu.input")(_with_one_state(_plain("relu")))


def _run(
    b: Body, x: Var, states: Sequence[Var], params: Sequence[Var], how: _Layers, cell: Cell
) -> tuple[Var, ...]:
    """The outputs of the last layer, then the last states, each [layers * directions, ...]."""
    if how.train and how.dropout:
        raise Untranslatable("dropout between recurrent layers: export the model in eval mode")
    if how.batch_first:
        x = b.transpose(x, perm=[1, 0, 2])
    directions = 1 + how.bidirectional
    each = len(params) // (how.count * directions)
    last: list[State] = []
    for layer in range(how.count):
        sides = []
        for side in range(directions):
            k = layer * directions + side
            start = tuple(b.select(s, index=k) for s in states)
            weights = params[k * each : (k + 1) * each]
            outputs, end = _direction(b, x, start, weights, how.has_biases, cell, bool(side))
            sides.append(outputs)
            last.append(end)
        x = sides[0] if len(sides) == 1 else b.concat(*sides, axis=2)
    y = b.transpose(x, perm=[1, 0, 2]) if how.batch_first else x
    return y, *(b.stack(*of_layers) for of_layers in zip(*last, strict=True))


def _direction(
    b: Body, x: Var, state: State, weights: Sequence[Var], has_biases: bool, cell: Cell,
    backwards: bool,
) -> tuple[Var, State]:  # fmt: skip
    """One layer from one end: x [T, N, F]; the outputs [T, N, H] and the last state."""
    length = x.shape[0]
    if not isinstance(length, int):
        raise Untranslatable("a recurrent layer needs a length that is a number")
    w_x, w_h, *rest = weights
    bias_x, bias_h = rest[:2] if has_biases else (None, None)
    projection = rest[2:] if has_biases else rest
    to_gates = b.linear(x, w_x, bias_x)
    outputs: list[Var] = []
    for step in reversed(range(length)) if backwards else range(length):
        from_state = b.linear(state[0], w_h, bias_h)
        state = cell(b, b.select(to_gates, index=step), from_state, state)
        if projection:
            state = (b.linear(state[0], projection[0]), *state[1:])
        outputs.append(state[0])
    return b.stack(*(outputs[::-1] if backwards else outputs)), state
