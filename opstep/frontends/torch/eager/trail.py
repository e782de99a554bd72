"""The way to a birth, by autograd's graph while it is there: what made operands so large, and
why a gradient that nobody needs is NaN all the same.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from opstep.frontends.torch.eager.places import Made, frames

MOST_NODES = 20_000  # of a graph that are searched
MOST_STEPS = 4  # of a trail
MOST_PASSED = 64  # nodes on the way
LARGE = 1e4  # a value below it needs no explanation
# Ops that choose elements, by their nodes and the operand that elements are chosen of. Which ones,
# a node no longer knows when the backward is past it.
_CHOICES = {
    ("WhereBackward0", 0): "where",
    ("WhereBackward0", 1): "where",
    ("MaskedFillBackward0", 0): "masked_fill",
}
# Between them and the op at hand: an element of their results is of the same one of their operands.
_ELEMENTWISE = (
    "Mul",
    "Add",
    "Sub",
    "Div",
    "Neg",
    "Pow",
    "Exp",
    "Log",
    "Sqrt",
    "Sin",
    "Cos",
    "Tanh",
)
_SAVED = ("_saved_self", "_saved_mat1", "_saved_mat2", "_saved_other", "_saved_input")

MadeBy = Callable[[Any], Made | None]  # the op that made a node


def growth(operands: Sequence[torch.Tensor], made_by: MadeBy) -> list[str]:
    """The way back from the largest operand to where its size is from, a line for each op."""
    tensors = [t for t in operands if t.is_floating_point() and t.numel()]
    largest = max(tensors, key=_size, default=None)
    if largest is None:
        return []
    found: list[str] = []
    node, size = largest.grad_fn, _size(largest)
    for _ in range(MOST_PASSED):
        if node is None or len(found) == MOST_STEPS or size < LARGE:
            break
        made = made_by(node)
        own = frames(made.stack) if made is not None else []
        given = [(_size(t), t, n) for t, n in _inputs(node) if t is not None]
        most, tensor, following = max(given, key=lambda one: one[0], default=(0.0, None, None))
        before = [n for n, _ in node.next_functions if n is not None]
        if not given and len(before) == 1:  # a view, or one that keeps nothing
            node = before[0]
            continue
        at = f" at {own[0].file}:{own[0].line}" if own else ""
        op = made.op if made is not None and made.op else node.name()
        of = f" of values up to {most:.3g}" if given else ""
        found.append(f"{size:.3g} was given by {op}{at}{of}")
        node, size = following, most
        if tensor is not None and tensor.is_leaf:
            break
    return found


def _inputs(node: Any) -> Iterator[tuple[torch.Tensor | None, Any]]:
    """The operands of a node's op, as far as it is kept, with the node that made it."""
    after = [n for n, _ in node.next_functions if n is not None]
    for one in after:
        if hasattr(one, "variable"):
            yield one.variable, None
    for name in _SAVED:
        try:
            tensor = getattr(node, name, None)
        except RuntimeError:  # freed
            continue
        if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
            yield tensor.detach(), tensor.grad_fn


def _size(t: torch.Tensor) -> float:
    """The largest magnitude among finite elements."""
    finite = torch.nan_to_num(t.detach(), nan=0.0, posinf=0.0, neginf=0.0)
    return float(finite.abs().max()) if t.numel() else 0.0


def trap(
    place: tuple[int, ...], shape: tuple[int, ...], operands: Sequence[torch.Tensor],
    made_by: MadeBy,
) -> str:  # fmt: skip
    """Of what is bad in a backward: the op of the forward that does not choose this element, whose
    gradient is 0 all the same; "" where none is known.
    """
    same = [t for t in operands if t.shape == shape]
    if not any(float(t[place].abs()) == 0 for t in same):
        return ""
    here: Any = torch._C._current_autograd_node()  # pyright: ignore
    roots = _roots()
    if here is None or not roots:
        return ""
    for parent, operand in _parents(roots, here):
        op = _CHOICES.get((parent.name(), operand))
        if op is None:
            continue
        made = made_by(parent)
        own = frames(made.stack) if made is not None else []
        at = f" at {own[0].file}:{own[0].line}" if own else ""
        return (
            f"the gradient that comes back from {op}{at} is 0 for this element, and 0 times an "
            f"infinite slope is NaN: use {op} on the operand, before this op, as well"
        )
    return ""


def _roots() -> list[Any]:
    """The nodes at which this thread's backward began."""
    frame: Any = sys._getframe()
    while frame is not None and frame.f_code.co_name != "_engine_run_backward":
        frame = frame.f_back
    outputs = frame.f_locals.get("t_outputs", ()) if frame is not None else ()
    return [t.grad_fn for t in outputs if getattr(t, "grad_fn", None) is not None]


def _parents(roots: list[Any], node: Any) -> Iterator[tuple[Any, int]]:
    """The nodes from which the backward came to this one by elementwise ones, the nearest first,
    each with the number of its operand that they belong to.
    """
    above: dict[Any, list[tuple[Any, int]]] = {}
    seen, waiting = set(roots), list(roots)
    while waiting and len(seen) < MOST_NODES:
        one = waiting.pop()
        for k, (following, _) in enumerate(one.next_functions):
            if following is None:
                continue
            above.setdefault(following, []).append((one, k))
            if following not in seen:
                seen.add(following)
                waiting.append(following)
    key = node._sequence_nr(), node.name()
    level = [n for n in seen if (n._sequence_nr(), n.name()) == key]
    for _ in range(MOST_STEPS):
        found = [pair for n in level for pair in above.get(n, ())]
        yield from found
        level = [n for n, _ in found if n.name().startswith(_ELEMENTWISE)]
