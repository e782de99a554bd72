"""The layers of AOTAutograd's graphs (`frontends.torch.recurrent`), and their gradients: a loop
from the last step to the first, or the other way for a layer that reads its input backwards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opstep.frontends.recurrent import called, put, row, series_like
from opstep.frontends.torch.body import Body, Var
from opstep.frontends.torch.rules.recurrent import CELLS, Cell, Weights, blended, layer, opened
from opstep.frontends.torch.rules.registry import rule
from opstep.runtime.ir.dims import Dim

Values = dict[str, Var]
END = 2**31 - 1  # of an axis, whatever its size


@rule("opstep::recurrent.default")
def recurrent(b: Body, name, x, h, c, w_x, w_h, b_x, b_h, w_p, backwards):
    cell = CELLS[name]
    state = tuple(s for s in (h, c) if s is not None)
    keep = b.is_used(3) or b.is_used(4)
    found = layer(b, cell, x, state, Weights(w_x, w_h, b_x, b_h, w_p), backwards, keep)
    return tuple(found.get(n) for n in ("y", "h", "c", *_series(cell)))


def _series(cell: Cell) -> list[str]:
    """What is kept for the gradient."""
    return [*cell.kept, *(["gates_x"] if cell.name == "gru" else [])]


@rule("opstep::recurrent_backward.default")
def recurrent_backward(
    b: Body, name, d_y, d_h, d_c, x, h, c, w_x, w_h, b_x, b_h, w_p, y, first, second, backwards
):  # fmt: skip
    cell = CELLS[name]
    by: dict[str, Any] = {"x": x, "h": h, "c": c, "w_x": w_x, "w_h": w_h}
    by |= {"b_x": b_x, "b_h": b_h, "w_p": w_p}
    present = [n for n, v in by.items() if v is not None]
    wanted = [n for n, is_used in zip(present, b.used, strict=True) if is_used]
    given: dict[str, Any] = {"d_y": d_y, "d_h": d_h, "d_c": d_c}
    given |= {n: by[n] for n in ("x", "h", "c", "w_x", "w_h", "w_p")} | {"y": y}
    given |= dict(zip(_series(cell), (first, second), strict=False))
    operands = {n: v for n, v in given.items() if v is not None}
    title = name + ("_reverse" if backwards else "")
    found = called(b, title, operands, lambda b, v: _layer(b, cell, v, title, backwards, wanted))
    return tuple(found.get(f"d_{n}") for n in present)


def _layer(
    b: Body, cell: Cell, given: Values, title: str, backwards: bool, wanted: list[str]
) -> Values:  # fmt: skip
    """`given`: derivatives by the results, operands of the layer, and what it kept."""
    length = given["x"].shape[0]
    before = {"before": _shifted(b, given["h"], given["y"], backwards, "h_before")}
    if cell.name == "lstm":
        before["c_before"] = _shifted(b, given["c"], given["cells"], backwards, "c_before")
    carried = {f"d_{n}": given[f"d_{n}"] for n in cell.states}
    for name, size in _collected(cell, given).items():
        carried[name] = series_like(b, name, given["x"], size)
    read = {n: given[n] for n in ("d_y", *_series(cell), "w_h", "w_p") if n in given}
    carried |= read | (before if cell.name != "rnn_tanh" and cell.name != "rnn_relu" else {})
    if not cell.kept:
        carried["y"] = given["y"]
    turn = TURNS[cell.name]
    last = b.over_time(title, length, carried, turn, not backwards)
    series = {n: last[n] for n in _collected(cell, given)}
    return _derivatives(b, cell, given, series, before["before"], last, wanted)


def _collected(cell: Cell, given: Values) -> dict[str, Dim]:
    """The derivatives that the loop collects for each step, and how wide they are."""
    found = {"d_gates": given["w_x"].shape[0]}
    if cell.name == "gru":
        found["d_recurrent"] = given["w_x"].shape[0]
    if "w_p" in given:
        found["d_projected"] = given["h"].shape[-1]
    return found


def _shifted(b: Body, start: Var, series: Var, backwards: bool, name: str) -> Var:
    """What each step began with: the state at the start, and what the others left."""
    first = b.unsqueeze(start, axes=[0])
    if backwards:
        rest = b.slice(series, starts=[1], ends=[END])
        return b.named(name, "concat", rest, first, axis=0)
    rest = b.slice(series, starts=[0], ends=[-1])
    return b.named(name, "concat", first, rest, axis=0)


def _derivatives(
    b: Body, cell: Cell, given: Values, series: Values, before: Var, last: Values,
    wanted: list[str],
) -> Values:  # fmt: skip
    """By all operands that are wanted, from those by the gates of all steps at once."""
    by_input = _flat(b, series["d_gates"])
    by_state = _flat(b, series["d_recurrent"]) if "d_recurrent" in series else by_input
    made: dict[str, Callable[[], Var]] = {
        "x": lambda: b.named("d_x", "matmul", series["d_gates"], given["w_x"]),
        "h": lambda: last["d_h"],
        "c": lambda: last["d_c"],
        "w_x": lambda: _product(b, "d_w_x", by_input, _flat(b, given["x"])),
        "w_h": lambda: _product(b, "d_w_h", by_state, _flat(b, before)),
        "b_x": lambda: b.named("d_b_x", "sum", by_input, axes=[0]),
        "b_h": lambda: b.named("d_b_h", "sum", by_state, axes=[0]),
        "w_p": lambda: _product(
            b, "d_w_p", _flat(b, series["d_projected"]), _flat(b, _unprojected(b, given))
        ),
    }
    return {f"d_{n}": made[n]() for n in wanted}


def _flat(b: Body, series: Var) -> Var:
    """All steps of all sequences as rows."""
    return b.reshape(series, shape=[-1, series.shape[-1]])


def _product(b: Body, name: str, gradient: Var, x: Var) -> Var:
    """Over all rows; a transposition of its own is quicker than one within the product."""
    return b.named(name, "matmul", b.transpose(gradient), x)


def _unprojected(b: Body, given: Values) -> Var:
    """h of all steps before the projection."""
    *_, o = opened(b, given["gates"])
    return b.mul(o, b.tanh(given["cells"]))


# --- one step back --------------------------------------------------------------------------------


def _incoming(b: Body, t: Var, v: Values) -> Var:
    """The derivative by a step's h: by what follows, and by its own output."""
    return b.named("d_h_all", "add", v["d_h"], row(b, v["d_y"], t, "d_y_now"))


def _after_sigmoid(b: Body, gradient: Var, y: Var) -> Var:
    return b.mul(gradient, b.mul(y, b.sub(1.0, y)))


def _after_tanh(b: Body, gradient: Var, y: Var) -> Var:
    return b.mul(gradient, b.sub(1.0, b.square(y)))


def _lstm(b: Body, t: Var, v: Values) -> Values:
    d_h, found = _incoming(b, t, v), {}
    if "w_p" in v:
        found["d_projected"] = put(b, v["d_projected"], t, d_h, "d_projected_new")
        d_h = b.named("d_m", "matmul", d_h, v["w_p"])
    i, f, g, o = opened(b, row(b, v["gates"], t, "gates_now"))
    c = b.named("tanh_c", "tanh", row(b, v["cells"], t, "c_now"))
    d_c = b.named("d_c_all", "add", v["d_c"], _after_tanh(b, b.mul(d_h, o), c))
    before = row(b, v["c_before"], t, "c_then")
    gates = b.named(
        "d_gates_now",
        "concat",
        _after_sigmoid(b, b.mul(d_c, g), i),
        _after_sigmoid(b, b.mul(d_c, before), f),
        _after_tanh(b, b.mul(d_c, i), g),
        _after_sigmoid(b, b.mul(d_h, c), o),
        axis=1,
    )
    found["d_gates"] = put(b, v["d_gates"], t, gates, "d_gates_new")
    found["d_h"] = b.named("d_h_new", "matmul", gates, v["w_h"])
    found["d_c"] = b.named("d_c_new", "mul", d_c, f)
    return found


def _gru(b: Body, t: Var, v: Values) -> Values:
    d_h = _incoming(b, t, v)
    x, r = row(b, v["gates_x"], t, "x"), row(b, v["recurrent"], t, "recurrent_now")
    reset, update, new, hn = blended(b, x, r)
    before = row(b, v["before"], t, "h_then")
    d_new = b.named("d_n", "mul", d_h, b.sub(1.0, update))
    d_n = _after_tanh(b, d_new, new)
    d_z = _after_sigmoid(b, b.mul(d_h, b.sub(before, new)), update)
    d_r = _after_sigmoid(b, b.mul(d_n, hn), reset)
    by_input = b.named("d_gates_now", "concat", d_r, d_z, d_n, axis=1)
    by_state = b.named("d_recurrent_now", "concat", d_r, d_z, b.mul(d_n, reset), axis=1)
    through = b.matmul(by_state, v["w_h"])
    return {
        "d_gates": put(b, v["d_gates"], t, by_input, "d_gates_new"),
        "d_recurrent": put(b, v["d_recurrent"], t, by_state, "d_recurrent_new"),
        "d_h": b.named("d_h_new", "add", b.mul(d_h, update), through),
    }


def _plain(after: Callable[[Body, Var, Var], Var]) -> Callable[[Body, Var, Values], Values]:
    def back(b: Body, t: Var, v: Values) -> Values:
        gates = after(b, _incoming(b, t, v), row(b, v["y"], t, "h"))
        return {
            "d_gates": put(b, v["d_gates"], t, gates, "d_gates_new"),
            "d_h": b.named("d_h_new", "matmul", gates, v["w_h"]),
        }

    return back


def _after_relu(b: Body, gradient: Var, y: Var) -> Var:
    return b.where(b.greater(y, 0.0), gradient, 0.0)


TURNS = {
    "lstm": _lstm,
    "gru": _gru,
    "rnn_tanh": _plain(_after_tanh),
    "rnn_relu": _plain(_after_relu),
}
