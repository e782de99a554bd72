"""LSTM, GRU and RNN: a graph for each direction, which is a loop over time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from opstep.frontends.onnx.body import Body, Var
from opstep.frontends.onnx.errors import Untranslatable
from opstep.frontends.onnx.rules.registry import rule
from opstep.frontends.recurrent import layer, row
from opstep.runtime.ir.types import i32

Activation = Callable[[Body, Var], Var]
# From the part of the gates that comes from the input, and what is carried: the next state.
Step = Callable[[Body, Var, Mapping[str, Var]], dict[str, Var]]
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


def _parts(b: Body, x: Var, count: int) -> list[Var]:
    return list(b.split(x, sizes=[x.shape[-1] // count] * count, axis=x.type.rank - 1))


def _recurrent(b: Body, v: Mapping[str, Var]) -> Var:
    """The part of the gates that comes from the state."""
    return b.linear(v["h"], v["w_h"], v.get("b_h"))


def _lstm(acts: Sequence[Activation], limit: Activation, input_forget: int) -> Step:
    f, g, h = acts

    def step(b: Body, x: Var, v: Mapping[str, Var]) -> dict[str, Var]:
        i, o, forget, cell = _parts(b, b.add(x, _recurrent(b, v)), 4)
        p_i, p_o, p_f = _parts(b, v["p"], 3) if "p" in v else (None, None, None)

        def seen(gate: Var, weight: Var | None, c: Var) -> Var:
            return f(b, limit(b, gate if weight is None else b.add(gate, b.mul(c, weight))))

        i, forget = seen(i, p_i, v["c"]), seen(forget, p_f, v["c"])
        if input_forget:
            forget = b.sub(1.0, i)
        c = b.add(b.mul(forget, v["c"]), b.mul(i, g(b, limit(b, cell))))
        return {"h": b.mul(seen(o, p_o, c), h(b, c)), "c": c}

    return step


def _gru(acts: Sequence[Activation], limit: Activation, linear_before_reset: int) -> Step:
    f, g = acts

    def step(b: Body, x: Var, v: Mapping[str, Var]) -> dict[str, Var]:
        h, size = v["h"], v["h"].shape[-1]
        x_z, x_r, x_h = _parts(b, x, 3)
        if linear_before_reset:
            z, r, own = _parts(b, _recurrent(b, v), 3)
        else:
            rows, last = b.split(v["w_h"], sizes=[2 * size, size], axis=0)
            split = (
                b.split(v["b_h"], sizes=[2 * size, size], axis=0) if "b_h" in v else (None, None)
            )
            z, r = _parts(b, b.linear(h, rows, split[0]), 2)
        z, r = f(b, limit(b, b.add(x_z, z))), f(b, limit(b, b.add(x_r, r)))
        inner = b.mul(r, own) if linear_before_reset else b.linear(b.mul(r, h), last, split[1])
        new = g(b, limit(b, b.add(x_h, inner)))
        return {"h": b.add(b.mul(b.sub(1.0, z), new), b.mul(z, h))}

    return step


def _rnn(acts: Sequence[Activation], limit: Activation, _: int) -> Step:
    (f,) = acts
    return lambda b, x, v: {"h": f(b, limit(b, b.add(x, _recurrent(b, v))))}


class _Form(NamedTuple):
    """`gates`: how many rows of the weights each element of the state has."""

    make: Callable[..., Step]
    states: tuple[str, ...]
    activations: tuple[str, ...]
    gates: int


FORMS = {
    "lstm": _Form(_lstm, ("h", "c"), ("Sigmoid", "Tanh", "Tanh"), 4),
    "gru": _Form(_gru, ("h",), ("Sigmoid", "Tanh"), 3),
    "rnn": _Form(_rnn, ("h",), ("Tanh",), 1),
}


def _layer(
    b: Body, name: str, step: Step, operands: Mapping[str, Var], backwards: bool
) -> dict[str, Var]:
    """One direction, up to the `lengths` of sequences."""

    def now(b: Body, t: Var, given: dict[str, Var]) -> dict[str, Var]:
        found = step(b, row(b, given["gates_x"], t, "x"), given)
        if "lengths" not in given:
            return found
        goes_on = b.unsqueeze(b.less(t, given["lengths"]), axes=[1])
        y = b.where(goes_on, found["h"], 0.0)
        return {n: b.where(goes_on, v, given[n]) for n, v in found.items()} | {"y": y}

    title = name + ("_reverse" if backwards else "")
    return layer(b, title, FORMS[name].states, operands, now, backwards)


def _run(
    b: Body, name: str, x: Var, w: Var, r: Var, bias: Var | None, lengths: Var | None,
    starts: Sequence[Var | None], peepholes: Var | None, variant: int, attrs: Mapping[str, Any],
) -> tuple[Var, ...]:  # fmt: skip
    direction, layout = attrs.get("direction", "forward"), attrs.get("layout", 0)
    form, sides, size = FORMS[name], w.shape[0], r.shape[-1]
    x = b.transpose(x, perm=[1, 0, 2]) if layout else x
    starts = [b.transpose(s, perm=[1, 0, 2]) if layout and s is not None else s for s in starts]
    assert isinstance(sides, int)
    alphas = list(attrs.get("activation_alpha") or [])
    betas = list(attrs.get("activation_beta") or [])
    acts = []
    # those that take numbers take the next ones
    for one in attrs.get("activations") or list(form.activations) * sides:
        alpha = alphas.pop(0) if one in ALPHAS and alphas else None
        beta = betas.pop(0) if one in BETAS and betas else None
        acts.append(activation(one, alpha, beta))
    most = attrs.get("clip")
    limit: Activation = (lambda b, v: b.clip(v, low=-most, high=most)) if most else (lambda b, v: v)
    found = []
    for side in range(sides):
        each = len(form.activations)
        step = form.make(acts[side * each : (side + 1) * each], limit, variant)
        operands = {"x": x}
        for state, start in zip(form.states, starts, strict=True):
            if start is None:
                operands[state] = b.zeros(shape=[x.shape[1], size], dtype=x.dtype)
            else:
                operands[state] = b.select(start, index=side)
        operands["w_x"], operands["w_h"] = b.select(w, index=side), b.select(r, index=side)
        if bias is not None:
            half = form.gates * size
            both = b.select(bias, index=side)
            operands["b_x"], operands["b_h"] = b.split(both, sizes=[half, half], axis=0)
        if peepholes is not None:
            operands["p"] = b.select(peepholes, index=side)
        if lengths is not None:
            operands["lengths"] = b.to(lengths, i32)
        found.append(_layer(b, name, step, operands, direction == "reverse" or side == 1))
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
    return _run(b, "lstm", x, w, r, bias, lengths, (h, c), p, input_forget, how)


@rule("GRU")
def gru(b: Body, x, w, r, bias=None, lengths=None, h=None, *, linear_before_reset=0, **how):
    return _run(b, "gru", x, w, r, bias, lengths, (h,), None, linear_before_reset, how)


@rule("RNN")
def rnn(b: Body, x, w, r, bias=None, lengths=None, h=None, **how):
    return _run(b, "rnn", x, w, r, bias, lengths, (h,), None, 0, how)
