"""Graphs of ATen ops as PyTorch runs them: op by op, compiled, and in f64."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import getitem
from typing import Any

import numpy as np
import torch
from torch import fx
from torch.fx.node import map_aggregate

from opstep.api.inputs import as_array
from opstep.frontends.torch.dims import dtype_of
from opstep.frontends.torch.drafts import Value, value_of
from opstep.runtime.ir.errors import DeviceError, InputError

Known = Mapping[Value, torch.Tensor]
RESHAPES: dict[Any, Any] = {  # views, where another device or type lays tensors out otherwise
    torch.ops.aten.view.default: torch.ops.aten.reshape.default
}
FEW = 64  # terms of a sum that add no error worth speaking of


def values(graph: fx.Graph) -> Iterator[Value]:
    """The tensors that its ops give, in order."""
    for node in graph.nodes:
        if node.op == "call_function" and node.target is not getitem:
            for k, found in enumerate(results_of(node.meta.get("val"))):
                if isinstance(found, torch.Tensor):
                    yield Value(node, k)


def results_of(found: Any) -> Sequence[Any]:
    return found if isinstance(found, list | tuple) else (found,)


def arguments(node: fx.Node) -> dict[str, Any]:
    """An op's arguments by name, with defaults; none where it has no schema."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return {}
    found = {a.name: a.default_value for a in schema.arguments}
    return found | dict(zip(found, node.args, strict=False)) | dict(node.kwargs)


def draws(node: fx.Node) -> bool:
    """Whether an op gives random numbers: dropout does not where it drops nothing."""
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    given = arguments(node)
    drops = (given[k] for k in ("p", "dropout_p", "train", "training") if k in given)
    return all(found is None or bool(found) for found in drops)


def run(graph: fx.Graph, known: Known, device: str = "cpu") -> dict[Value, torch.Tensor]:
    """All values of a graph, by PyTorch's own kernels, from those that are known: of placeholders,
    and random numbers.
    """

    def adapted(leaf: Any) -> Any:
        return torch.device(device) if isinstance(leaf, torch.device) else leaf

    with _pytorch_errors():
        found = {v: t.to(device) for v, t in known.items()}
        drawn = {v.node for v in known}
        nodes = [n for n in graph.nodes if n.op == "call_function" and n not in drawn]
        nodes = [n for n in nodes if value_of(n) not in known]
        env = _evaluated(nodes, found, adapted)
        for node, made in env.items():
            if node.target is not getitem:
                found.update(_tensors(node, made))
        return {v: t.cpu() for v, t in found.items()}  # where a GPU's errors come out


def run_compiled(
    graph: fx.Graph, known: Known, wanted: Sequence[Value], device: str = "cpu"
) -> dict[Value, torch.Tensor]:
    """Some values of a graph that Inductor compiles as a whole: they are its outputs, so it fuses
    what lies between them. Raises `DeviceError` where it cannot.
    """
    copy, outer = fx.Graph(), {}
    copy.graph_copy(graph, outer)
    outputs = []
    for value in wanted:
        node = outer[value.node]
        several = isinstance(value.node.meta["val"], list | tuple)
        outputs.append(copy.call_function(getitem, (node, value.index)) if several else node)
    copy.output(tuple(outputs))
    if device != "cpu":
        for node in copy.nodes:
            node.kwargs = {
                k: torch.device(device) if isinstance(a, torch.device) else a
                for k, a in node.kwargs.items()
            }
    places = [n for n in graph.nodes if n.op == "placeholder"]
    with _pytorch_errors():
        operands = [known[Value(n)].to(device) if Value(n) in known else None for n in places]
        made = _compiled(fx.GraphModule(graph.owning_module or {}, copy), operands)
        found = dict(zip(wanted, (t.cpu() for t in made), strict=True))
    return {**{v: t for v, t in known.items() if v.node.op == "placeholder"}, **found}


def _compiled(module: fx.GraphModule, operands: Sequence[Any]) -> Sequence[torch.Tensor]:
    from torch._dynamo.exc import TorchDynamoException

    torch._dynamo.reset()
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            return torch.compile(module, backend="inductor", fullgraph=True)(*operands)
    except TorchDynamoException as error:
        cause = str(error).split("\n")[0]
        hint = "install a C++ compiler, or name one in CXX" if "compiler" in cause else ""
        raise DeviceError(f"Inductor cannot compile the model: {cause}", hint=hint) from None


@contextmanager
def _pytorch_errors() -> Iterator[None]:
    """What PyTorch says of a model that it cannot run, as errors of ours."""
    try:
        yield
    except torch.cuda.OutOfMemoryError as error:
        raise DeviceError(f"PyTorch: {str(error).splitlines()[0]}") from None
    except (RuntimeError, IndexError) as error:
        message = str(error).split("\n")[0]
        raise InputError(f"PyTorch cannot run the model: {message}") from None


def cone(
    graph: fx.Graph, values: Sequence[Value], known: Container[Value]
) -> tuple[list[fx.Node], list[Value]]:
    """What must be computed for values, in order, and the known values that this begins with."""
    stack = [v.node for v in values]
    nodes, leaves = set(stack), dict[Value, None]()
    while stack:
        for operand in stack.pop().all_input_nodes:
            value = value_of(operand)
            if value in known:
                leaves[value] = None
            elif operand not in nodes and operand.op == "call_function":
                nodes.add(operand)
                stack.append(operand)
    single = len(nodes) == 1
    return list(nodes) if single else [n for n in graph.nodes if n in nodes], list(leaves)


class Exact:
    """Ops of a graph in f64, on operands that one side had. What a side is not known to have had is
    computed from what it had before.
    """

    def __init__(self, graph: fx.Graph, known: Known):
        self._graph = graph
        self._known = known

    def results(
        self, values: Sequence[Value], shaken: np.random.Generator | None = None
    ) -> list[torch.Tensor]:
        """What the ops that make values give. With `shaken` each element of the floats that this
        begins with is moved up or down by the rounding error of its type. Raises what PyTorch
        raises where an op has no f64.
        """
        nodes, leaves = cone(self._graph, values, self._known)
        wide = {v: _wide(self._known[v], shaken) for v in leaves}
        env = _evaluated(nodes, wide, _in_f64)
        return [_tensors(v.node, env[v.node])[v] for v in values]

    def growth(self, value: Value) -> float:
        """How much more than one rounding error a sum of many terms has, by the number of terms
        that sizes suggest: the square root of it, as errors have either sign. Shorter types are
        summed in f32.
        """
        nodes, leaves = cone(self._graph, [value], self._known)
        pointwise = all(torch.Tag.pointwise in getattr(n.target, "tags", ()) for n in nodes)
        floats = [self._known[v] for v in leaves if self._known[v].is_floating_point()]
        if pointwise or not floats or any(t.dtype.itemsize < 4 for t in floats):
            return 1.0
        sizes = sorted(t.numel() for t in floats)[-2:]
        size = max(self._known[value].numel(), 1)
        return max(1.0, (math.prod(sizes) / size) ** (0.5 / len(sizes)) / FEW**0.5)

    def operand(self, node: fx.Node) -> torch.Tensor:
        """What an op is given."""
        value = value_of(node)
        known = self._known.get(value)
        return self.results([value])[0] if known is None else _wide(known, None)


def _wide(tensor: torch.Tensor, shaken: np.random.Generator | None) -> torch.Tensor:
    if not tensor.is_floating_point():
        return tensor
    wide = tensor.double()
    if shaken is None:
        return wide
    signs = torch.from_numpy(shaken.integers(0, 2, wide.shape) * 2.0 - 1.0)
    return wide * (1 + signs * (torch.finfo(tensor.dtype).eps / 2))


def _in_f64(leaf: Any) -> Any:
    return torch.float64 if isinstance(leaf, torch.dtype) and leaf.is_floating_point else leaf


def _evaluated(
    nodes: Iterable[fx.Node], known: Known, adapted: Callable[[Any], Any]
) -> dict[fx.Node, Any]:
    """What nodes give, in order; `adapted` changes arguments that are no nodes."""
    env: dict[fx.Node, Any] = {}

    def operand(found: Any) -> Any:
        if not isinstance(found, fx.Node):
            return adapted(found)
        if found in env:
            return env[found]
        if found.op == "get_attr":  # a function of control flow
            return getattr(found.graph.owning_module, str(found.target))
        value = value_of(found)
        return known[value] if value in known else found.meta.get("val")

    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for node in nodes:
            args = map_aggregate(node.args, operand)
            kwargs = map_aggregate(node.kwargs, operand)
            target: Any = RESHAPES.get(node.target, node.target)
            env[node] = target(*args, **kwargs)
    return env


def _tensors(node: fx.Node, made: Any) -> dict[Value, torch.Tensor]:
    found = enumerate(results_of(made))
    return {Value(node, k): t for k, t in found if isinstance(t, torch.Tensor)}


def array_of(tensor: torch.Tensor) -> np.ndarray:
    return as_array("a tensor", tensor.detach().contiguous(), dtype_of(tensor.dtype))


def tensor_of(array: np.ndarray) -> torch.Tensor:
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.array(array))
