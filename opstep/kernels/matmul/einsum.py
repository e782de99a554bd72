"""Sums of products by named axes: `einsum`.

Operands are contracted two at a time, from the left: each is summed over axes that it alone has,
and the pair is a matrix product, or one of elements where no axis is summed. What does not lie in
memory as a matrix product takes or gives it is moved.
"""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from itertools import permutations
from math import prod
from typing import Any, NamedTuple

import numpy as np

from opstep.kernels.matmul import cuda_gemm
from opstep.kernels.matmul.matmul import product
from opstep.kernels.matmul.products import Side
from opstep.kernels.pointwise.cuda_elementwise import elementwise, gathered
from opstep.kernels.pointwise.loops import looped
from opstep.kernels.rules.axes import strides_of, volume
from opstep.runtime.device.launch import Arg, Held
from opstep.runtime.ir.faults import Faults, Regions, Site
from opstep.runtime.ir.op import OPS, Mismatch, Op
from opstep.runtime.ir.types import DType, TensorType, bf16

_FEW = 5  # axes of which all orders are tried, where there is one tensor between


def parse_equation(equation: str) -> tuple[list[str], str]:
    """Labels of each operand and of the result; raises Mismatch."""
    text = equation.replace(" ", "")
    if "." in text:
        hint = "name every axis, as in bij,bjk->bik"
        raise Mismatch("einsum: an ellipsis is not taken", "equation", hint)
    left, arrow, out = text.partition("->")
    inputs = left.split(",")
    counts = Counter("".join(inputs))
    if not arrow:
        out = "".join(sorted(label for label, n in counts.items() if n == 1))
    for label in text.replace(",", "").replace("->", ""):
        if label not in string.ascii_letters:
            raise Mismatch(f"einsum: axes are named by letters, not {label!r}", "equation")
    for labels in (*inputs, out):
        twice = next((label for label, n in Counter(labels).items() if n > 1), None)
        if twice:
            raise Mismatch(f"einsum: {twice} names two axes of one tensor, {labels}", "equation")
    for label in out:
        if label not in counts:
            raise Mismatch(f"einsum: no operand has the result's axis {label}", "equation")
    return inputs, out


def _sizes(equation: str, xs: Sequence[TensorType | Arg]) -> dict:
    """The extent of each label."""
    inputs, _ = parse_equation(equation)
    if len(inputs) != len(xs):
        raise Mismatch(
            f"einsum: {equation} is about {len(inputs)} operands, not {len(xs)}", "equation"
        )
    sizes = {}
    for k, (labels, x) in enumerate(zip(inputs, xs, strict=True)):
        if len(labels) != x.rank:
            raise Mismatch(f"einsum: {labels!r} names {len(labels)} axes, but {x} has {x.rank}", k)
        for label, size in zip(labels, x.shape, strict=True):
            if sizes.setdefault(label, size) != size:
                raise Mismatch(f"einsum: axis {label} is {sizes[label]} and {size}", k)
    return sizes


class _Term:
    """An operand or intermediate result in memory: which label steps how far."""

    def __init__(self, array: Arg | Held, labels: str, sizes: dict[str, int]):
        self.array = array
        self.labels = labels
        self.steps = dict(zip(labels, strides_of([sizes[label] for label in labels]), strict=True))

    def strides(self, labels: str) -> tuple[int, ...]:
        return tuple(self.steps.get(label, 0) for label in labels)

    def merged(self, labels: str, sizes: dict[str, int]) -> int | None:
        """The step of `labels` taken as one axis; None where they are not one in memory."""
        step = 1
        for k, label in enumerate(reversed(labels)):
            if k and self.steps[label] != step:
                return None
            step = self.steps[label] * sizes[label]
        return self.steps[labels[-1]] if labels else 1

    @classmethod
    def held(
        cls, dtype: DType, labels: str, sizes: dict[str, int], stored: DType | None = None
    ) -> _Term:
        """Working memory."""
        return cls(Held(dtype, tuple(sizes[label] for label in labels), stored), labels, sizes)


class _Device(NamedTuple):
    """What makes launches, by device: of matrix products, sums, products of elements, copies in
    another order. With `gaps`, products may leave some between rows of results.
    """

    products: Callable[..., list]
    sums: Callable[..., Any]
    elementwise: Callable[..., Any]
    moved: Callable[..., list]
    gaps: bool


def _multiply_on_gpu(f: Callable, name: str, xs: Sequence[Arg], y: Arg) -> Any:
    return elementwise(f, name, xs, y) or looped(f, name, xs, y)


def _move_on_cpu(x: Arg, y: Arg, perm: Sequence[int]) -> list:
    return OPS["transpose"].cpu(x, y, perm=tuple(perm))  # pyright: ignore[reportReturnType]


def _move_on_gpu(x: Arg, y: Arg, perm: Sequence[int]) -> list:
    steps = strides_of(x.shape)
    found = gathered(itself, "itself", x, y, y.shape or (1,), [steps[k] for k in perm] or (0,), 0)
    return [found] if found else _move_on_cpu(x, y, perm)


def _contract(
    a: _Term, b: _Term, y: _Term, sizes: dict[str, int], device: _Device, moves: bool
) -> list | None:
    """Launches for one pair; None where operands would have to be moved, unless it `moves` them."""
    launches: list = []
    a = _summed(a, b.labels + y.labels, sizes, device, launches)
    b = _summed(b, a.labels + y.labels, sizes, device, launches)
    inner = "".join(t for t in a.labels if t in b.steps and t not in y.steps)
    if not inner:
        given = [
            _ordered(x, "".join(t for t in y.labels if t in x.steps), sizes, device, launches)
            for x in (a, b)
        ]
        if launches and not moves:
            return None
        spread = [_spread(x, y.labels, sizes) for x in given]
        return [*launches, device.elementwise(times, "times", spread, y.array)]
    found = _as_matrices(a, b, y, sizes, device) or _as_matrices(b, a, y, sizes, device)
    if found or not moves:
        return launches + found if found else None
    batch = "".join(t for t in y.labels if t in a.steps and t in b.steps)
    rows = "".join(t for t in y.labels if t in a.steps and t not in b.steps)
    columns = "".join(t for t in y.labels if t in b.steps and t not in a.steps)
    labels = batch + rows + columns
    made = y
    if labels != y.labels:
        made = _Term.held(y.array.dtype, labels, sizes, y.array.stored)
        found = _as_matrices(a, b, made, sizes, device)
    if not found:
        a = _ordered(a, batch + rows + inner, sizes, device, launches)
        b = _ordered(b, batch + columns + inner, sizes, device, launches)
        found = _as_matrices(a, b, made, sizes, device) or []
    launches += found
    return launches if made is y else launches + _moved(made, y, device)


def _summed(
    x: _Term,
    kept: str,
    sizes: dict[str, int],
    device: _Device,
    launches: list,
    into: _Term | None = None,
) -> _Term:
    """x without axes that are not kept; `into` is that, if it has their order."""
    labels = "".join(t for t in x.labels if t in kept)
    if labels == x.labels:
        return x
    made = into if into and into.labels == labels else _Term.held(x.array.dtype, labels, sizes)
    axes = tuple(k for k, t in enumerate(x.labels) if t not in kept)
    summing = device.sums(x.array, made.array, axes=axes, keepdims=False)
    launches += summing if isinstance(summing, list) else [summing]
    return made


def _ordered(
    x: _Term, labels: str, sizes: dict[str, int], device: _Device, launches: list
) -> _Term:
    """x with its axes in that order."""
    if labels == x.labels:
        return x
    made = _Term.held(x.array.dtype, labels, sizes, x.array.stored)
    launches += _moved(x, made, device)
    return made


def _moved(x: _Term, y: _Term, device: _Device) -> list:
    """y = x, whose axes have another order."""
    return device.moved(x.array, y.array, [x.labels.index(t) for t in y.labels])


def _spread(x: _Term, labels: str, sizes: dict[str, int]) -> Any:
    """x's array with axes of one element for those that it lacks; its own are in that order."""
    seen = copy(x.array) if isinstance(x.array, Arg) else x.array  # working memory is one object
    seen.shape = tuple(sizes[t] if t in x.steps else 1 for t in labels)
    return seen


def times(a, b):
    return a * b


def itself(v):
    return v


def _as_matrices(
    a: _Term, b: _Term, y: _Term, sizes: dict[str, int], device: _Device
) -> list | None:
    """The pair as products of matrices, if result and operands lie so in memory."""
    shared = {t for t in y.labels if t in a.steps and t in b.steps}
    batch = "".join(t for t in y.labels if t in shared)
    rows = "".join(t for t in y.labels if t in a.steps and t not in shared)
    columns = "".join(t for t in y.labels if t in b.steps and t not in shared)
    inner = "".join(t for t in a.labels if t in b.steps and t not in y.steps)
    gaps = {}
    if y.labels != batch + rows + columns:
        pitch = y.merged(rows, sizes)
        if not device.gaps or pitch is None or y.merged(columns, sizes) != 1:
            return None
        gaps = {"c_pitch": pitch, "c_batch": y.strides(batch)}
    steps = [a.merged(rows, sizes), a.merged(inner, sizes)]
    steps += [b.merged(inner, sizes), b.merged(columns, sizes)]
    if None in steps or 1 not in steps[:2] or 1 not in steps[2:]:
        return None
    extent = [prod(sizes[t] for t in labels) for labels in (rows, columns, inner)]
    left = Side(a.array, *steps[:2], a.strides(batch))
    right = Side(b.array, *steps[2:], b.strides(batch))
    shape = tuple(sizes[t] for t in batch)
    return device.products(left, right, y.array, shape, *extent, **gaps)


def _contractions(operands: Sequence[Arg], equation: str, device: _Device) -> list:
    """Launches for all operands, two at a time."""
    *xs, y = operands
    if not y.size:
        return []
    inputs, out = parse_equation(equation)
    sizes = _sizes(equation, xs)
    terms = [_Term(x, labels, sizes) for x, labels in zip(xs, inputs, strict=True)]
    result = _Term(y, out, sizes)
    first, *others = terms
    if not others:
        launches: list = []
        last = _summed(first, out, sizes, device, launches, result)
        return launches if last is result else launches + _moved(last, result, device)
    for orders in (_as_they_come, permutations) if len(terms) == 3 else (_as_they_come,):
        found = _from_left(first, others, result, sizes, device, orders, moves=False)
        if found is not None:
            return found
    return _from_left(first, others, result, sizes, device, _as_they_come, moves=True) or []


def _as_they_come(labels: Iterable[str]) -> list[tuple[str, ...]]:
    return [tuple(labels)]


def _from_left(
    first: _Term, others: list[_Term], y: _Term, sizes: dict[str, int], device: _Device,
    orders: Callable[[Iterable[str]], Iterable[tuple[str, ...]]], moves: bool,
) -> list | None:  # fmt: skip
    """Launches for all operands; None where one would have to be moved, unless it `moves` them.
    `orders`: those that the axes of what is between may have.
    """
    second, *rest = others
    if not rest:
        return _contract(first, second, y, sizes, device, moves)
    needed = set(y.labels).union(*(t.labels for t in rest))
    labels = [t for t in dict.fromkeys(first.labels + second.labels) if t in needed]
    for order in orders(labels) if len(labels) <= _FEW else [tuple(labels)]:
        # for tensor cores; f16 would overflow where the sums that follow do not
        stored = bf16 if device.gaps and y.array.stored is bf16 else None
        made = _Term.held(y.array.dtype, "".join(order), sizes, stored)
        launches = _contract(first, second, made, sizes, device, moves)
        if launches is None:
            continue
        more = _from_left(made, rest, y, sizes, device, orders, moves)
        if more is not None:
            return launches + more
    return None


def by_labels(site: Site) -> Regions:
    """Along each axis what the result's place says, or all of it where the axis is summed over."""
    inputs, out = parse_equation(site.attrs["equation"])
    at = dict(zip(out, site.index, strict=True))
    return [
        tuple(slice(at[i], at[i] + 1) if i in at else slice(None) for i in labels)
        for labels in inputs
    ]


class einsum(Op):
    """Sums of products over named axes, in Einstein notation.

    `equation` names the axes of each operand and of the result with letters, as in
    ``bij,bjk->bik``; axes that are not in the result are summed over. Without ``->``, the result
    has the axes named once, in alphabetical order. Ellipses, and a letter twice in one tensor (a
    diagonal), are not supported.
    """

    signature = "einsum(xs: N*, *, equation: str)"
    source = "torch.einsum, ONNX Einsum"
    faults = Faults(by_labels)

    def infer(*xs, equation):
        sizes = _sizes(equation, xs)
        return xs[0].with_shape(sizes[label] for label in parse_equation(equation)[1])

    def oracle(*xs, equation):
        return np.einsum(equation, *xs)

    def cpu(*operands, equation):
        return _contractions(
            operands,
            equation,
            _Device(product, OPS["sum"].cpu, looped, _move_on_cpu, gaps=False),
        )

    def cuda(*operands, equation):
        return _contractions(
            operands,
            equation,
            _Device(cuda_gemm.product, OPS["sum"].cuda, _multiply_on_gpu, _move_on_gpu, gaps=True),
        )

    def grad(g, operands, results, grads, *, equation):
        (gy,) = grads
        inputs, out = parse_equation(equation)
        sizes = _sizes(equation, [x.type for x in operands])
        gradients = []
        for k in range(len(operands)):
            others = [*operands[:k], *operands[k + 1 :]]
            given = [out, *inputs[:k], *inputs[k + 1 :]]
            found = "".join(label for label in inputs[k] if any(label in t for t in given))
            gx = g.einsum(gy, *others, equation=f"{','.join(given)}->{found}")
            if found != inputs[k]:  # axes that x alone has were summed: each element counts alike
                axes = [i for i, label in enumerate(inputs[k]) if label not in found]
                gx = g.broadcast(g.unsqueeze(gx, axes=axes), shape=[sizes[t] for t in inputs[k]])
            gradients.append(gx)
        return gradients

    def flops(*xs, equation):
        sizes = _sizes(equation, xs)
        return len(xs) * volume(list(sizes.values()))
