"""PyTorch's random numbers: drawn by its own generators before a graph runs, so that a seed gives
what it gives in eager mode. The program takes them as inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import fx
from torch._prims.rng_prims import run_and_save_rng_state, run_with_rng_state
from torch.fx.node import map_aggregate

from opstep.frontends.torch.dims import evaluated

aten = torch.ops.aten
SHAPED = {  # that see of their operands nothing but shapes
    "rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "uniform",
    "normal_functional", "exponential", "geometric", "cauchy", "log_normal",
}  # fmt: skip

DRAWN = (aten.native_dropout.default, aten.bernoulli.p, aten.normal.float_float)


def is_random(op: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(op, "tags", ())


def is_drawn(op: Any) -> bool:
    """Whether its numbers can be drawn before anything is computed."""
    return op in DRAWN or (is_random(op) and op._schema.name.partition("::")[2] in SHAPED)


class Drawn(NamedTuple):
    """Numbers to be drawn in each call: by an op of PyTorch's, with these arguments, of which fx
    nodes are tensors of that shape or sizes. `state`: the number of the call's argument that the
    generator's state is taken from, where numbers are drawn once more.
    """

    op: Callable[..., torch.Tensor]
    args: tuple
    kwargs: Mapping[str, Any]
    state: int | None = None

    def bound(self, sizes: Mapping[Any, int]) -> Callable[[Sequence[Any]], torch.Tensor]:
        """What draws them for a call's arguments, once sizes are known."""

        def concrete(argument: Any) -> Any:
            value = argument.meta["val"] if isinstance(argument, fx.Node) else argument
            if not isinstance(value, torch.Tensor):
                return evaluated(value, sizes)
            # generators fill memory in order, so the order of its axes counts
            shape = [evaluated(s, sizes) for s in value.shape]
            strides = [evaluated(s, sizes) for s in value.stride()]
            return torch.empty_strided(shape, strides, dtype=value.dtype, device=value.device)

        args: Any = map_aggregate(self.args, concrete)
        kwargs: Any = map_aggregate(dict(self.kwargs), concrete)
        state = self.state
        if state is None:
            return lambda given: self.op(*args, **kwargs)
        return lambda given: run_with_rng_state(given[state], self.op, *args, **kwargs)


def take_out(graph: fx.Graph) -> list[Drawn]:
    """Makes random numbers placeholders, behind the others; tells how each is drawn."""
    found: list[Drawn] = []
    placeholders = graph.find_nodes(op="placeholder")
    last = placeholders[-1] if placeholders else None

    def placeholder(name: str, val: Any) -> fx.Node:
        nonlocal last
        with graph.inserting_after(last) if last else graph.inserting_before():
            last = graph.placeholder(name)
        last.meta["val"] = val
        return last

    for node in list(graph.nodes):
        again = None
        if node.target is run_and_save_rng_state:
            node, state = _saved(graph, node)
            found.append(Drawn(partial(_state, _device(node)), (), {}))
            state.replace_all_uses_with(placeholder("generator", state.meta["val"]))
        elif node.target is run_with_rng_state:
            again = placeholders.index(cast(fx.Node, node.args[0]))
            node = _repeated(graph, node)
        op: Any = node.target
        if node.op != "call_function" or not is_drawn(op):
            continue
        if op is not aten.native_dropout.default:
            found.append(Drawn(_filling(op), node.args, node.kwargs, again))
            node.replace_all_uses_with(placeholder(node.name, node.meta["val"]))
        elif node.args[2] is not False and node.args[1]:
            x, p, _ = node.args
            found.append(Drawn(_kept, (x, p), {}, again))
            _dropout(graph, node, placeholder(f"{node.name}_mask", node.meta["val"][1]))
    return found


def _filling(op: Any) -> Callable[..., torch.Tensor]:
    """The method that an op stands for once PyTorch has no calls in place any more: what it draws
    depends on the gaps in the memory that it fills.
    """
    name = op._schema.name.partition("::")[2].removesuffix("_functional")
    return op if op in DRAWN else getattr(torch.Tensor, f"{name}_", op)


# --- checkpoints ---


def _saved(graph: fx.Graph, node: fx.Node) -> tuple[fx.Node, fx.Node]:
    """An op that the backward does again: itself, and the generator's state before it."""
    state, result = sorted(node.users, key=lambda user: cast(int, user.args[1]))
    return _plain(graph, node, node.args, result, result.meta), state


def _repeated(graph: fx.Graph, node: fx.Node) -> fx.Node:
    """The same in the backward, where nothing says what it gives."""

    def value(operand: fx.Node) -> Any:
        return operand.meta["val"]

    state, op, *args = node.args
    meta = next((user.meta for user in node.users if "stack_trace" in user.meta), {})
    with value(cast(fx.Node, state)).fake_mode:
        given = fx.map_arg((args, node.kwargs), value)
        val = cast(Any, op)(*given[0], **given[1])
    return _plain(graph, node, node.args[1:], node, {**meta, "val": val})


def _plain(
    graph: fx.Graph, node: fx.Node, args: Sequence[Any], result: fx.Node, meta: dict[str, Any]
) -> fx.Node:
    """`op(*args)` in place of `result`."""
    op, *operands = args
    with graph.inserting_before(node):
        plain = graph.call_function(op, tuple(operands), node.kwargs)
    plain.meta = dict(meta)
    result.replace_all_uses_with(plain)
    return plain


def _device(node: fx.Node) -> torch.device:
    val = node.meta["val"]
    return (val[0] if isinstance(val, tuple) else val).device


def _state(device: torch.device) -> torch.Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _kept(x: torch.Tensor, p: float) -> torch.Tensor:
    return torch.native_dropout(x.fill_(1), p, True)[1]


def _dropout(graph: fx.Graph, node: fx.Node, mask: fx.Node) -> None:
    """What `native_dropout` does once it has its mask."""
    x, p, _ = cast(tuple[fx.Node, float, Any], node.args)
    result = node.meta["val"][0]
    with graph.inserting_before(node):
        masked = graph.call_function(aten.mul.Tensor, (x, mask))
        scaled = graph.call_function(aten.mul.Tensor, (masked, 0.0 if p == 1 else 1 / (1 - p)))
    for new in (masked, scaled):
        new.meta = {**node.meta, "val": result}
    for user in list(node.users):
        user.replace_all_uses_with(scaled if user.args[1] == 0 else mask)
