"""Control flow of PyTorch: `torch.cond` and `torch.while_loop`, whose functions become graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx

from opstep.frontends.torch.body import Body, Var
from opstep.frontends.torch.drafts import Draft
from opstep.frontends.torch.errors import Untranslatable
from opstep.runtime.ir.types import TensorType

# The graph of a function, what it is called, and how many of its last inputs are results, too.
Translate = Callable[[fx.GraphModule, str, int], Draft]
Argument = Callable[[Any], Any]  # an argument of a node as rules take it


def _function(node: fx.Node, place: int) -> fx.GraphModule:
    named = node.args[place]
    assert isinstance(named, fx.Node)
    return getattr(named.graph.owning_module, str(named.target))


def _types(part: Draft) -> list[TensorType]:
    return [v.type for v in part.results]


def _check_results(first: Draft, second: Draft) -> None:
    if _types(first) != _types(second):
        raise Untranslatable("the functions of control flow give different types")


def cond(translate: Translate, node: fx.Node, body: Body, argument: Argument) -> list[Var]:
    pred, operands = argument(node.args[0]), argument(node.args[3])
    if not isinstance(pred, Var):
        raise Untranslatable("a condition that is no tensor")
    then = translate(_function(node, 1), "then", 0)
    other = translate(_function(node, 2), "else", 0)
    _check_results(then, other)
    graphs = {"then": then.name, "else": other.name}
    return body.control("cond", (body.reshaped(pred, ()), *operands), _types(then), graphs)


def while_loop(translate: Translate, node: fx.Node, body: Body, argument: Argument) -> list[Var]:
    """What the loop only reads goes around with what it changes."""
    carried, constant = argument(node.args[2]), argument(node.args[3])
    if not all(isinstance(v, Var) for v in (*carried, *constant)):
        raise Untranslatable("an operand of control flow that is no tensor")
    test = translate(_function(node, 0), "test", 0)
    inner = translate(_function(node, 1), "body", len(constant))
    if _types(inner) != [v.type for v in inner.inputs]:
        raise Untranslatable("a loop that changes the types of its operands")
    graphs = {"test": test.name, "body": inner.name}
    results = body.control("while", (*carried, *constant), _types(inner), graphs)
    return results[: len(carried)]


CONTROL = {"cond": cond, "while_loop": while_loop}
