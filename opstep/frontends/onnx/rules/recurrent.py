"""LSTM, GRU and RNN: a graph for each direction, which is a loop over time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from opstep.frontends.onnx.body import Body, Var
from opstep.frontends.onnx.errors import Untranslatable
from opstep.frontends.onnx.rules.registry import rule
from opstep.runtime.ir.types import i32

Activation = Callable[[Body, Var], Var]
# What an activation has where a node leaves it out.
ALPHAS = {
    "LeakyRelu": 0.01, "ThresholdedRelu": 1.0, "HardSigmoid": 0.2, "Elu": 1.0, "ScaledTanh": 1.0,
    "Affine": 1.0,
}  # fmt: skip
BETAS = {"HardSigmoid": 0.5, "ScaledTanh": 1.0, "Affine": 0.0}


def activation(name: str, alpha: float | None, beta: float | None) -> Activation:
    alpha = ALPHAS.get(name, 0.0) if alpha is None else alpha
    beta = BETAS.get(name, 0.0) if beta is None else beta
    found: dict[str, Activation] = {
        "Sigmoid": lambda b, x: b.sigmoid(x), "Tanh": lambda b, x: b.tanh(x),
        "Relu": lambda b, x: b.relu(x), "Softplus": lambda b, x: b.softplus(x),
        "Softsign": lambda b, x: b.div(x, b.add(b.abs(x), 1.0)),
        "Elu": lambda b, x: b.elu(x, alpha=alpha),
        "LeakyRelu": lambda b, x: b.leaky_relu(x, slope=alpha),
        "ThresholdedRelu": lambda b, x: b.where(b.greater(x, alpha), x, 0.0),
        "HardSigmoid": lambda b, x: b.hard_sigmoid(x, alpha=alpha, beta=beta),
        "ScaledTanh": lambda b, x: b.mul(b.tanh(b.mul(x, beta)), alpha),
        "Affine": lambda b, x: b.add(b.mul(x, alpha), beta),
    }  # fmt: skip
    if name not in found:
        raise Untranslatable(f"the activation {name}")
    return found[name]


class Cell(NamedTuple):
    """`gates`: how many rows of the weights each element of the state has. `step`: from the gates
    that the input gives, and what is carried, the next state.
    """

    name: str
    gates: int
    step: Callable[[Body, Var, Mapping[str, Var]], Mapping[str, Var]]


def _parts(b: Body, x: Var, count: int) -> list[Var]:
    return list(b.split(x, sizes=[x.shape[-1] // count] * count, axis=x.type.rank - 1))


def _lstm(acts: Sequence[Activation], limit: Activation, input_forget: int):
    f, g, h = acts

    def step(b: Body, x: Var, given: Mapping[str, Var]) -> Mapping[str, Var]:
        gates = b.add(x, b.linear(given["h"], given["r"], given.get("b_r")))
        i, o, forget, cell = _parts(b, gates, 4)
        p_i, p_o, p_f = _parts(b, given["p"], 3) if "p" in given else (None, None, None)

        def seen(gate: Var, weight: Var | None, c: Var) -> Var:
            return gate if weight is None else b.add(gate, b.mul(c, weight))

        i = f(b, limit(b, seen(i, p_i, given["c"])))
        forget = f(b, limit(b, seen(forget, p_f, given["c"])))
        if input_forget:
            forget = b.sub(1.0, i)
        c = b.add(b.mul(forget, given["c"]), b.mul(i, g(b, limit(b, cell))))
        return {"h": b.mul(f(b, limit(b, seen(o, p_o, c))), h(b, c)), "c": c}

    return Cell("lstm", 4, step)


def _gru(acts: Sequence[Activation], limit: Activation, linear_before_reset: int):
    f, g = acts

    def step(b: Body, x: Var, given: Mapping[str, Var]) -> Mapping[str, Var]:
        h, size = given["h"], given["h"].shape[-1]
        x_z, x_r, x_h = _parts(b, x, 3)
        if linear_before_reset:
            z, r, own = _parts(b, b.linear(h, given["r"], given.get("b_r")), 3)
        else:
            rows, last = b.split(given["r"], sizes=[2 * size, size], axis=0)
            biases = (
                b.split(given["b_r"], sizes=[2 * size, size], axis=0)
                if "b_r" in given
                else (None, None)
            )
            z, r = _parts(b, b.linear(h, rows, biases[0]), 2)
        z = f(b, limit(b, b.add(x_z, z)))
        r = f(b, limit(b, b.add(x_r, r)))
        if linear_before_reset:
            inner = b.mul(r, own)
        else:
            inner = b.linear(b.mul(r, h), last, biases[1])
        new = g(b, limit(b, b.add(x_h, inner)))
        return {"h": b.add(b.mul(b.sub(1.0, z), new), b.mul(z, h))}

    return Cell("gru", 3, step)


def _rnn(acts: Sequence[Activation], limit: Activation, _: int):
    (f,) = acts

    def step(b: Body, x: Var, given: Mapping[str, Var]) -> Mapping[str, Var]:
        return {"h": f(b, limit(b, b.add(x, b.linear(given["h"], given["r"], given.get("b_r")))))}

    return Cell("rnn", 1, step)


def _layer(b: Body, cell: Cell, operands: Mapping[str, Var], backwards: bool) -> dict[str, Var]:
    """One direction: its outputs y [T, N, H] and its last state."""
    states = [n for n in ("h", "c") if n in operands]

    def write(b: Body, *values: Var) -> list[Var]:
        given = dict(zip(operands, values, strict=True))
        gates = b.named("gates", "linear", given["x"], given["w"], given.get("b_x"))
        y = b.named(
            "y",
            "zeros",
            shape=[*given["x"].shape[:2], given["h"].shape[-1]],
            dtype=given["h"].dtype,
        )
        kept = ("r", "b_r", "p", "lengths")
        carried = {n: given[n] for n in states} | {"y": y, "gates": gates}
        carried |= {n: given[n] for n in kept if n in given}
        last = b.over_time(title, gates.shape[0], carried, turn, backwards)
        return [last["y"], *(last[n] for n in states)]

    def turn(b: Body, t: Var, given: dict[str, Var]) -> dict[str, Var]:
        x = b.named("x", "gather", given["gates"], t, axis=0)
        found = dict(cell.step(b, x, given))
        y = found["h"]
        if "lengths" in given:
            goes_on = b.unsqueeze(b.less(t, given["lengths"]), axes=[1])
            y = b.where(goes_on, y, 0.0)
            found = {n: b.where(goes_on, v, given[n]) for n, v in found.items()}
        found["y"] = b.scatter_nd(given["y"], b.reshape(t, shape=[1]), y)
        return found

    title = cell.name + ("_reverse" if backwards else "")
    part = b.part(title, [(n, v.type) for n, v in operands.items()], write)
    names = ["y", *states]
    types = [v.type for v in part.results]
    return dict(zip(names, b.called(part.name, list(operands.values()), types), strict=True))


class _Form(NamedTuple):
    """What is common to the three."""

    make: Callable[..., Cell]
    states: tuple[str, ...]
    activations: tuple[str, ...]
    gates: int


FORMS = {
    "LSTM": _Form(_lstm, ("h", "c"), ("Sigmoid", "Tanh", "Tanh"), 4),
    "GRU": _Form(_gru, ("h",), ("Sigmoid", "Tanh"), 3),
    "RNN": _Form(_rnn, ("h",), ("Tanh",), 1),
}


def _run(
    b: Body, form: _Form, x: Var, w: Var, r: Var, bias: Var | None, lengths: Var | None,
    starts: Sequence[Var | None], peepholes: Var | None, variant: int, attrs: Mapping[str, Any],
) -> tuple[Var, ...]:  # fmt: skip
    direction, layout = attrs.get("direction", "forward"), attrs.get("layout", 0)
    x = b.transpose(x, perm=[1, 0, 2]) if layout else x
    starts = [b.transpose(s, perm=[1, 0, 2]) if layout and s is not None else s for s in starts]
    sides = w.shape[0]
    assert isinstance(sides, int)
    size = r.shape[-1]
    names = attrs.get("activations") or list(form.activations) * sides
    alphas, betas = (
        list(attrs.get("activation_alpha") or []),
        list(attrs.get("activation_beta") or []),
    )
    acts = []
    for name in names:  # those that take numbers take the next ones
        alpha = alphas.pop(0) if name in ALPHAS and alphas else None
        beta = betas.pop(0) if name in BETAS and betas else None
        acts.append(activation(name, alpha, beta))
    most = attrs.get("clip")
    limit: Activation = (lambda b, v: b.clip(v, low=-most, high=most)) if most else (lambda b, v: v)
    found = []
    for side in range(sides):
        each = len(form.activations)
        cell = form.make(acts[side * each : (side + 1) * each], limit, variant)
        operands = {"x": x}
        for name, start in zip(form.states, starts, strict=True):
            zeros = start is None
            operands[name] = (
                b.zeros(shape=[x.shape[1], size], dtype=x.dtype)
                if zeros
                else b.select(start, index=side)
            )
        operands["w"], operands["r"] = b.select(w, index=side), b.select(r, index=side)
        if bias is not None:
            half = form.gates * size
            both = b.select(bias, index=side)
            operands["b_x"], operands["b_r"] = b.split(both, sizes=[half, half], axis=0)
        if peepholes is not None:
            operands["p"] = b.select(peepholes, index=side)
        if lengths is not None:
            operands["lengths"] = b.to(lengths, i32)
        found.append(_layer(b, cell, operands, direction == "reverse" or side == 1))
    y = b.stack(*(f["y"] for f in found), axis=1)
    last = [b.stack(*(f[n] for f in found)) for n in form.states]
    if layout:
        y = b.transpose(y, perm=[2, 0, 1, 3])
        last = [b.transpose(v, perm=[1, 0, 2]) for v in last]
    return y, *last


@rule("LSTM")
def lstm(
    b: Body, x, w, r, bias=None, lengths=None, h=None, c=None, p=None, *, input_forget=0, **how
):
    return _run(b, FORMS["LSTM"], x, w, r, bias, lengths, (h, c), p, input_forget, how)


@rule("GRU")
def gru(b: Body, x, w, r, bias=None, lengths=None, h=None, *, linear_before_reset=0, **how):
    return _run(b, FORMS["GRU"], x, w, r, bias, lengths, (h,), None, linear_before_reset, how)


@rule("RNN")
def rnn(b: Body, x, w, r, bias=None, lengths=None, h=None, **how):
    return _run(b, FORMS["RNN"], x, w, r, bias, lengths, (h,), None, 0, how)
