"""Recurrent layers while PyTorch traces: single ops, where it would repeat the cell for each step.

What is exported keeps PyTorch's ops. AOTAutograd's graphs have ``opstep::recurrent``, a layer in
one direction, and its gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch._C import DispatchKey
from torch._decomp import decomposition_table
from torch.overrides import TorchFunctionMode

from opstep.frontends.torch.drafts import Value, value_of
from opstep.frontends.torch.single import other_kernels

aten = torch.ops.aten
Tensor = torch.Tensor

NAMES = {
    torch._VF.lstm: "lstm", torch._VF.gru: "gru", torch._VF.rnn_tanh: "rnn_tanh",
    torch._VF.rnn_relu: "rnn_relu",
}  # fmt: skip
GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}

RECURRENT = {f"torch.nn.modules.rnn.{kind}" for kind in ("LSTM", "GRU", "RNN")}
_PLACES = {  # of an op's results in what such a module returns: ``y, (h, c)``, or ``y, h``
    "lstm": [(0,), (1, 0), (1, 1)], "gru": [(0,), (1,)], "rnn_tanh": [(0,), (1,)],
    "rnn_relu": [(0,), (1,)],
}  # fmt: skip


def places_in_result(values: Sequence[Value]) -> tuple[tuple[int, ...], ...]:
    """Where values are in what a recurrent layer returns, an impossible place for what it does not;
    none where they are of no such layer.
    """
    found = [_place(v) for v in values]
    return tuple(p or (-1,) for p in found) if any(found) else ()


def _place(value: Value) -> tuple[int, ...] | None:
    """Layers and directions are stacked or joined behind the op."""
    node, index = value
    while node.all_input_nodes:
        op = getattr(node.target, "_schema", None)
        name = op.name.partition("::")[2] if op else ""
        if name == "recurrent":
            name = str(node.args[0])
        if name in _PLACES:
            places = _PLACES[name]
            return places[index] if index < len(places) else None
        if name not in ("stack", "cat", "unsqueeze", "transpose", "permute", "view"):
            return None
        node, index = value_of(node.all_input_nodes[0])
    return None


# --- exported -------------------------------------------------------------------------------------


@contextmanager
def whole_layers() -> Iterator[None]:
    """While the block lasts, traces have recurrent layers as they are, of any length: PyTorch
    finds the shapes of what they give without going through all steps.
    """
    ops = [aten.lstm.input, aten.gru.input, aten.rnn_tanh.input, aten.rnn_relu.input]
    keys = (DispatchKey.CompositeImplicitAutograd,)
    kernels = {op: dict.fromkeys((*op.py_kernels, *keys), _shapes) for op in ops}
    with other_kernels(kernels), mock.patch.dict(decomposition_table, dict.fromkeys(ops, _shapes)):
        yield


def _shapes(
    x: Tensor, hidden: Any, params: Any, biases: bool, count: int, dropout: float, train: bool,
    both: bool, first: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    states = hidden if isinstance(hidden, list | tuple) else [hidden]
    y = x.new_empty((*x.shape[:2], states[0].shape[-1] * (1 + both)))
    return y, *(s.new_empty(s.shape) for s in states)


# --- in AOTAutograd's graphs ----------------------------------------------------------------------


class SingleLayers(TorchFunctionMode):
    """While it is entered, a recurrent layer is traced as `opstep::recurrent`, for each direction,
    and dropout between layers as it is anywhere else. Packed sequences are traced step by step.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in NAMES or kwargs:
            return func(*args, **(kwargs or {}))
        if isinstance(args[3], list | tuple):
            return _packed(func, *args)
        return _traced(NAMES[func], *args)


def _packed(
    func: Any, x: Tensor, sizes: Tensor, hidden: Any, params: Sequence[Tensor], biases: bool,
    count: int, dropout: float, train: bool, both: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Layer by layer: PyTorch's own definition of several leaves dropout out."""
    states = list(hidden) if isinstance(hidden, list | tuple) else [hidden]
    last: list[Any] = []
    for k in range(count):
        if k and dropout and train:
            x = torch.dropout(x, dropout, True)
        own = [s.chunk(count)[k] for s in states]
        weights = params[k * len(params) // count : (k + 1) * len(params) // count]
        state = own if isinstance(hidden, list | tuple) else own[0]
        x, *ends = func(x, sizes, state, weights, biases, 1, 0.0, train, both)
        last.append(ends)
    return (x, *(torch.cat(ends) for ends in zip(*last, strict=True)))


def _traced(
    cell: str, x: Tensor, hidden: Any, params: Sequence[Tensor], biases: bool, count: int,
    dropout: float, train: bool, both: bool, first: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    states = list(hidden) if isinstance(hidden, list | tuple) else [hidden]
    if torch.is_autocast_enabled(x.device.type):
        dtype = torch.get_autocast_dtype(x.device.type)
        x, *states = (t.to(dtype) for t in (x, *states))
        params = [p.to(dtype) for p in params]
    x = x.transpose(0, 1) if first else x
    each = len(params) // (count * (1 + both))
    last: list[tuple[Tensor, ...]] = []
    for number in range(count):
        if number and dropout and train:
            x = torch.dropout(x, dropout, True)
        sides = []
        for side in range(1 + both):
            k = number * (1 + both) + side
            start = [s[k] for s in states] + [None] * (2 - len(states))
            weights = _weights(params[k * each : (k + 1) * each], biases)
            y, *ends = torch.ops.opstep.recurrent(cell, x, *start, *weights, bool(side))
            sides.append(y)
            last.append(tuple(ends[: len(states)]))
        x = sides[0] if len(sides) == 1 else torch.cat(sides, 2)
    x = x.transpose(0, 1) if first else x
    return (x, *(torch.stack(ends) for ends in zip(*last, strict=True)))


def _weights(params: Sequence[Tensor], biases: bool) -> list[Tensor | None]:
    """Those of the input and of the state, their biases, and a projection."""
    own = list(params) if biases else [*params[:2], None, None, *params[2:]]
    return [*own, *[None] * (5 - len(own))]


# --- as ops of PyTorch's, which run where a graph falls back to them ---

Optional = Tensor | None


@torch.library.custom_op("opstep::recurrent", mutates_args=())
def recurrent(
    cell: str, x: Tensor, h: Tensor, c: Optional, w_x: Tensor, w_h: Tensor, b_x: Optional,
    b_h: Optional, w_p: Optional, backwards: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """One layer in one direction, over x [T, N, F]: its outputs [T, N, H], its last h and c, and
    what its gradient needs. That is for an LSTM what its gates are computed from and c after each
    step, for a GRU what the state and what the input gives to its gates. What a cell does not have
    is empty.
    """
    from_x = torch.nn.functional.linear(x, w_x, b_x)
    steps = range(x.shape[0])
    rows: dict[int, tuple[Tensor, ...]] = {}
    for t in reversed(steps) if backwards else steps:
        from_h = torch.nn.functional.linear(h, w_h, b_h)
        h, c, *kept = _step(cell, from_x[t], from_h, h, c)
        h = h if w_p is None else torch.nn.functional.linear(h, w_p)
        rows[t] = (h, *kept)
    y, *series = (torch.stack(found) for found in zip(*(rows[t] for t in steps), strict=True))
    series += [from_x] if cell == "gru" else []
    last = [h.clone(), *([] if c is None else [c.clone()])]
    empty = [x.new_empty(0) for _ in range(4)]
    return y, *[*last, *empty][:2], *[*series, *empty[2:]][:2]  # pyright: ignore[reportReturnType]


def _step(cell: str, x: Tensor, r: Tensor, h: Tensor, c: Any) -> tuple[Any, ...]:
    """The next h and c, then rows of what is kept."""
    if cell == "lstm":
        i, f, g, o = (x + r).chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c, x + r, c
    if cell == "gru":
        (xr, xz, xn), (hr, hz, hn) = x.chunk(3, 1), r.chunk(3, 1)
        new = (xn + (xr + hr).sigmoid() * hn).tanh()
        return new + (xz + hz).sigmoid() * (h - new), None, r
    return ((x + r).tanh() if cell == "rnn_tanh" else (x + r).relu()), None


@recurrent.register_fake
def _(cell, x, h, c, w_x, w_h, b_x, b_h, w_p, backwards):
    time, size = x.shape[0], w_h.shape[0] // GATES[cell]
    kept = {"lstm": (4 * size, size), "gru": (3 * size, 3 * size)}.get(cell)
    series = [x.new_empty((time, h.shape[0], n)) for n in kept or ()]
    series = series or [x.new_empty(0), x.new_empty(0)]
    y = x.new_empty((time, *h.shape))
    return y, h.new_empty(h.shape), (x.new_empty(0) if c is None else c.new_empty(c.shape)), *series


@torch.library.custom_op("opstep::recurrent_backward", mutates_args=())
def recurrent_backward(
    cell: str, d_y: Tensor, d_h: Tensor, d_c: Optional, x: Tensor, h: Tensor, c: Optional,
    w_x: Tensor, w_h: Tensor, b_x: Optional, b_h: Optional, w_p: Optional, y: Tensor,
    first: Tensor, second: Tensor, backwards: bool,
) -> list[Tensor]:  # fmt: skip
    """The gradients by those of x, h, c and the weights that there are."""
    given = [x, h, c, w_x, w_h, b_x, b_h, w_p]
    autograd = torch._C.DispatchKey.AutogradFunctionality  # which is off within an op
    with torch._C._SetExcludeDispatchKeyGuard(autograd, False), torch.enable_grad():
        own = [None if t is None else t.detach().requires_grad_() for t in given]
        found = recurrent._init_fn(cell, *own, backwards)
        outputs, seeds = found[: 2 + (c is not None)], [d_y, d_h, d_c][: 2 + (c is not None)]
        wanted = [t for t in own if t is not None]
        return [t.clone() for t in torch.autograd.grad(outputs, wanted, seeds)]


@recurrent_backward.register_fake
def _(cell, d_y, d_h, d_c, x, h, c, w_x, w_h, b_x, b_h, w_p, y, first, second, backwards):
    return [t.new_empty(t.shape) for t in (x, h, c, w_x, w_h, b_x, b_h, w_p) if t is not None]


def _saved(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.cell, *given, ctx.backwards = inputs
    y, _, _, *kept = output
    ctx.save_for_backward(*given, y, *(kept if ctx.cell in ("lstm", "gru") else (y, y)))


def _gradients(ctx: Any, d_y: Tensor, d_h: Tensor, d_c: Tensor, *_: Any) -> tuple:
    given = ctx.saved_tensors
    seeds = (d_y, d_h, None if given[2] is None else d_c)
    found = torch.ops.opstep.recurrent_backward(ctx.cell, *seeds, *given, ctx.backwards)
    own = iter(found)
    return (None, *(None if t is None else next(own) for t in given[:8]), None)


recurrent.register_autograd(_gradients, setup_context=_saved)
