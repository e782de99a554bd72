"""What AOTAutograd is asked for: graphs of few ops, forward and backward, with their lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from operator import getitem
from typing import Any
from unittest import mock

import torch
from torch import fx
from torch._decomp import decomposition_table
from torch._decomp.decompositions import upsample_compute_output_size
from torch._functorch import config as functorch
from torch._functorch._aot_autograd import graph_compile
from torch._functorch.partitioners import default_partition
from torch.nn.attention import SDPBackend, sdpa_kernel

from opstep.frontends.torch.attention import SingleAttention
from opstep.frontends.torch.compositions import COMPOSITIONS
from opstep.frontends.torch.definitions import once
from opstep.frontends.torch.drafts import value_of
from opstep.frontends.torch.drawing import is_drawn, is_random
from opstep.frontends.torch.pooling import find_indices_again
from opstep.frontends.torch.probing import why_refused
from opstep.frontends.torch.recurrent import SingleLayers
from opstep.frontends.torch.rules.registry import RULES, key_of
from opstep.frontends.torch.single import other_kernels
from opstep.frontends.torch.whole import whole_ops

aten = torch.ops.aten
VIEWS = {
    aten.t.default, aten.transpose.int, aten.permute.default, aten.view.default,
    aten._unsafe_view.default, aten.unsqueeze.default, aten.squeeze.default, aten.squeeze.dim,
    aten.squeeze.dims, aten.alias.default, aten.detach.default,
}  # fmt: skip
AT_ONCE = {  # the backward is made with the forward: what has no counterpart is refused before
    name: True for name in ("force_non_lazy_backward_lowering",) if hasattr(functorch, name)
}
STATES = {  # checkpoints keep a generator's state as a tensor, on a GPU too
    name: False for name in ("graphsafe_rng_functionalization",) if hasattr(functorch, name)
}
_PYTHON = (torch._C.DispatchKey.Autograd, torch._C.DispatchKey.CompositeImplicitAutograd)
COMPLEX = {aten.complex.default, aten.polar.default}  # their definitions write to what they give
FREE = VIEWS | {aten.expand.default}  # to do again: cheaper than to keep what they give


def decompositions() -> dict[Any, Any]:
    """Definitions of the ops that have no rule, PyTorch's own where we have none, and of those that
    draw random numbers by what they are given.
    """
    wanted = {
        op: definition if is_random(op) else _unless_refused(op, definition)
        for op, definition in {**decomposition_table, **COMPOSITIONS}.items()
        if isinstance(op, torch._ops.OpOverload)
        and not is_drawn(op)
        and (key_of(op) not in RULES or is_random(op))
        and op not in COMPLEX
    }
    return once(wanted, set())


def _unless_refused(op: Any, definition: Callable[..., Any]) -> Callable[..., Any]:
    """A definition that leaves a call as it is where PyTorch's kernels would refuse its element
    types, so that the translator says so.
    """

    @wraps(definition)
    def defined(*args: Any, **kwargs: Any) -> Any:
        return NotImplemented if why_refused(op, args, kwargs) else definition(*args, **kwargs)

    return defined


@contextmanager
def simple_kernels() -> Iterator[None]:
    """While the block lasts, recurrent layers and attention run as the ops that they stand for: not
    as calls of libraries, which have other gradients.
    """
    enabled = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch._C._set_mkldnn_enabled(enabled)


@contextmanager
def single_ops() -> Iterator[None]:
    """While the block lasts, attention and recurrent layers are traced as ops of ours, or as the
    ops that they stand for.

    Ops that have a rule, and a backward with one, are traced as such: before autograd sees them
    PyTorch writes some (`upsample_bilinear2d`) as indices. Its batch norm has to be written as one
    that gives its statistics: the op itself changes them in place. So are gradients that PyTorch
    composes and we have as one op.
    """
    backward = (key for key in RULES if f"{key.partition('.')[0]}_backward.default" in RULES)
    found = (op for op in map(_overload, backward) if op and op != aten.native_batch_norm.default)
    wholes = {op: dict.fromkeys(_PYTHON, _sized(op)) for op in found if _PYTHON[0] in op.py_kernels}
    with (
        simple_kernels(), SingleAttention(), SingleLayers(), functorch.patch(AT_ONCE),
        _nothing_donated(), other_kernels(wholes), whole_ops(),
    ):  # fmt: skip
        yield


def _sized(op: Any) -> Callable | None:
    """For an op that takes sizes or factors: sizes that vary become numbers, so other ones are
    compiled anew. Neither PyTorch's own kernel nor its gradients take others.
    """
    if op._overloadname != "vec":
        return None

    def resized(x: torch.Tensor, sizes: Any, *rest: Any) -> torch.Tensor:
        *options, factors = rest
        sizes = sizes and [int(n) for n in sizes]
        sizes = upsample_compute_output_size([int(n) for n in x.shape], sizes, factors)
        factors = factors or [None] * len(sizes)
        return op._overloadpacket.default(x, sizes, *options, *factors)

    return resized


def _overload(key: str) -> Any:
    """ATen's op of this key; None for others."""
    name, _, overload = key.partition(".")
    packet = None if "::" in name else getattr(aten, name, None)
    return getattr(packet, overload, None)


def _nothing_donated() -> Any:
    """A backward that was made at once may run again: `retain_graph` is as in eager mode. PyTorch
    takes what was kept for it as its own to write to, else, which ours does not do.
    """
    name = "collect_bw_donated_buffer_idxs"
    return mock.patch.object(graph_compile, name, return_value=[], create=True)


def partition(joint: fx.GraphModule, inputs: Any, **options: Any) -> Any:
    """Parts forward and backward as eager mode does: what it keeps for the backward is kept, and
    nothing else is computed again, but for views of it.
    """
    find_indices_again(joint.graph)
    _find_lines(joint.graph)
    _find_gradients(joint.graph)
    _view_again(joint.graph)
    with functorch.patch(STATES):
        return default_partition(joint, inputs, **options)


def _is_backward(node: fx.Node) -> bool:
    return node.meta.get("partitioner_tag") == "is_backward"


def _view_again(graph: fx.Graph) -> None:
    """Views that the backward needs are taken there: kept are what they are views of."""
    position = {node: k for k, node in enumerate(graph.nodes)}
    for node in reversed(list(graph.nodes)):
        if node.target not in FREE or _is_backward(node):
            continue
        users = [u for u in node.users if _is_backward(u)]
        if users:
            first = min(users, key=lambda u: position[u])
            with graph.inserting_before(first):
                again = graph.node_copy(node)
            again.meta = {**node.meta, "partitioner_tag": "is_backward"}
            position[again] = position[first]
            for user in users:
                user.replace_input_with(node, again)


def _find_lines(graph: fx.Graph) -> None:
    """Backward ops have the module and the line of the op that they are the gradient of; autograd
    gives both the same number.
    """
    forward: dict[int, fx.Node] = {}
    for node in graph.nodes:
        if not _is_backward(node) and node.meta.get("stack_trace"):
            forward.setdefault(node.meta.get("seq_nr", -1), node)
    for node in graph.nodes:
        if not _is_backward(node):
            continue
        source = forward.get(node.meta.get("seq_nr", -1))
        stack = node.meta.get("fwd_nn_module_stack")
        if source is not None:
            stack = stack or source.meta.get("nn_module_stack")
            if not node.meta.get("stack_trace"):
                node.meta["stack_trace"] = source.meta["stack_trace"]
        if node.meta.get("is_gradient_acc"):  # of a value that was used several times
            stack = _around([n.meta.get("nn_module_stack") or {} for n in node.all_input_nodes])
        if stack:
            node.meta["nn_module_stack"] = stack


def _find_gradients(graph: fx.Graph) -> None:
    """Notes which values of the backward are gradients, and of what: what the backward of an op
    takes from that of others is the gradient of the op's result. So is that of the sums that it is
    only a term of.
    """
    results: dict[int, fx.Node] = {}
    taken: dict[int, dict[fx.Node, None]] = {}
    for node in graph.nodes:
        number = node.meta.get("seq_nr", -1)
        node.meta["in_joint"] = node.name
        if not _is_backward(node):
            if node.target not in (aten.detach.default, aten.alias.default, getitem):
                results[number] = node  # of several ops the last
        elif not node.meta.get("is_gradient_acc"):
            others = (n for n in node.all_input_nodes if _is_backward(n))
            of_others = (n for n in others if _number_of_gradient(n) != number)
            taken.setdefault(number, {}).update(dict.fromkeys(of_others))
    for number, given in taken.items():
        of, tensors = results.get(number), [n for n in given if _shape(n) is not None]
        if of is None or len(tensors) != 1 or not _has_shape_of_first(tensors[0], of):
            continue
        node, index = value_of(tensors[0])
        known = node.meta.setdefault("gradient_of", {}).setdefault(index, [])
        while of is not None:
            known.append(of.name)
            of = _sum_of(of)


def _sum_of(node: fx.Node) -> fx.Node | None:
    """The sum that a value is a term of, and is not used but for that."""
    users = [u for u in node.users if not _is_backward(u)]
    is_sum = len(users) == 1 and users[0].target is aten.add.Tensor and not users[0].kwargs
    return users[0] if is_sum and _shape(users[0]) == _shape(node) else None


def _number_of_gradient(node: fx.Node) -> int:
    """The number of the op that it is a gradient of; a sum of gradients of one value has none."""
    return -2 if node.meta.get("is_gradient_acc") else node.meta.get("seq_nr", -1)


def _shape(node: fx.Node) -> Any:
    value = node.meta.get("val")
    return value.shape if isinstance(value, torch.Tensor) else None


def _has_shape_of_first(gradient: fx.Node, node: fx.Node) -> bool:
    """Whether a gradient has the shape of an op's first result, and of no other."""
    value = node.meta.get("val")
    results = value if isinstance(value, list | tuple) else [value]
    shapes = [getattr(r, "shape", None) for r in results]
    return shapes[:1] == [_shape(gradient)] and shapes.count(shapes[0]) == 1


def _around(stacks: list[dict[str, Any]]) -> dict[str, Any]:
    """The modules that are around all of these."""
    common = []
    for level in zip(*(stack.items() for stack in stacks), strict=False):
        if any(entry != level[0] for entry in level):
            break
        common.append(level[0])
    return dict(common)
