"""Why an op gave a NaN or an infinity: by our own op's rule, of a program that has only this op."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from opstep.frontends.torch.eager.births import Birth
from opstep.frontends.torch.eager.ops import as_call, substituted, tensors_in
from opstep.frontends.torch.eager.tensors import undispatched
from opstep.runtime.nan.findings import Finding
from opstep.runtime.nan.kinds import KINDS
from opstep.runtime.nan.verdict import Element, Verdict

ARGUMENT = re.compile(r"arg(\d+)_1")
_GUESSES = (0.0, -1.0)  # for operands that are overwritten: an op that fails does with one of these
MOST_ELEMENTS = 1 << 24  # of operands: of larger ones no reason is looked for


def reason_of(birth: Birth) -> Finding | None:
    """A hunt's finding in a program of the op on the operands that it had. None where these are not
    known, the op has no counterpart, or our op gives finite results.
    """
    kinds = birth.kind if birth.verdict is not None else KINDS
    for number in _GUESSES:
        given, guessed = _known(birth, number)
        tensors = [t for a in given for t in tensors_in(a)]
        if not given or sum(t.numel() for t in tensors) > MOST_ELEMENTS:
            return None
        try:
            with undispatched(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                op, given = functional(birth.target, given, birth.result)
                tensors = [t for a in given for t in tensors_in(a)]
                found = _hunted(op, given, tensors, kinds)
        except Exception:  # of PyTorch, which cannot trace it, or of ours, which cannot compute it
            return None
        if not guessed:
            return found
        if found is not None and found.verdict is not None and found.verdict.kind == birth.kind:
            lost = {k for k, t in enumerate(tensors) if any(t is g for g in guessed)}
            return _without(lost, found, found.verdict, birth)
    return None


def _without(lost: set[int], found: Finding, verdict: Verdict, birth: Birth) -> Finding:
    """Of a finding only what does not depend on the operands with these numbers."""
    numbers = [ARGUMENT.fullmatch(o.name) if o is not None else None for o in found.operands]
    kept = [n is None or int(n[1]) not in lost for n in numbers]
    values = dict(zip(birth.first, birth.values, strict=False))
    elements = tuple(
        Element(place, value, verdict.rules[0][0], None, ())
        if not (same := [e for e in verdict.elements if e.place == place])
        else same[0]._replace(
            value=value, exact=None, blamed=tuple(b for b in same[0].blamed if kept[b.operand])
        )
        for place, value in values.items()
    )
    operands = tuple(o if k else None for o, k in zip(found.operands, kept, strict=True))
    return replace(found, operands=operands, verdict=verdict._replace(elements=elements))


def _hunted(op: Any, arguments: Any, tensors: list[torch.Tensor], kinds: Any) -> Finding | None:
    from opstep.frontends.torch.autograd import decompositions
    from opstep.frontends.torch.evaluating import array_of, results_of
    from opstep.frontends.torch.graphs import AtenGraph
    from opstep.frontends.torch.labels import Labels
    from opstep.frontends.torch.rules import all_rules
    from opstep.hunting.search import hunt

    all_rules()
    given = [t.detach().cpu() for t in tensors]
    on_host = [torch.device("cpu") if isinstance(a, torch.device) else a for a in arguments]

    def call(*operands: torch.Tensor) -> Any:
        args, kwargs = as_call(op, substituted(on_host, operands))
        return tuple(t for t in results_of(op(*args, **kwargs)) if isinstance(t, torch.Tensor))

    table = decompositions()
    module = make_fx(call, decomposition_table=table, tracing_mode="fake")(*given)
    graph = AtenGraph(module, "inference", Labels([]))
    program = graph.program()
    if program is None:
        return None
    names = [b.name.text for b in program.graph("inference").inputs]
    inputs = {n: array_of(given[k]) for n, k in zip(names, graph.inputs, strict=False)}
    found = hunt(program, "inference", inputs, kinds=kinds)
    every = (*found.findings, *found.masked)
    return next((f for f in every if f.verdict is not None and not f.given), None)


def functional(op: Any, given: list[Any], index: int) -> tuple[Any, list[Any]]:
    """The op that gives what an in-place one writes; of one on lists that on their elements."""
    space, _, name = op._schema.name.partition("::")
    plain = name.removesuffix("_")
    if plain == name and not name.startswith("_foreach_"):
        return op, given
    packet = getattr(getattr(torch.ops, space), plain.removeprefix("_foreach_"))
    if not name.startswith("_foreach_"):
        return getattr(packet, op._overloadname), given
    values = [a[index] if isinstance(a, list) and a else a for a in given]
    scalar = isinstance(values[-1], int | float)
    if plain.startswith("_foreach_addc") and scalar:
        return packet.default, values
    kind = "Scalar" if scalar and len(values) == 2 else "Tensor" if len(values) > 1 else "default"
    return getattr(packet, kind), values


def _known(birth: Birth, number: float) -> tuple[list[Any], list[torch.Tensor]]:
    """The arguments; a number for an operand that was finite and is overwritten, in the tensors
    that come with them. Nothing where others are not known.
    """
    lost = [o for o in birth.operands if o.tensor is None]
    written = {birth.target._schema.arguments[o.index].alias_info is not None for o in lost}
    if any(o.level for o in lost) or False in written:
        return [], []
    guessed = [torch.full(o.shape, number, dtype=o.dtype) for o in lost]
    left = iter(guessed)
    numbers = {o.index for o in lost}

    def filled(a: Any) -> Any:
        return [next(left) if x is None else x for x in a] if isinstance(a, list) else next(left)

    return [filled(a) if k in numbers else a for k, a in enumerate(birth.arguments)], guessed


def wide_results(birth: Birth) -> torch.Tensor | None:
    """The result of the op for the same operands in f64; None where that is not known."""
    if not birth.arguments or any(o.tensor is None for o in birth.operands):
        return None
    return wide_result(birth.target, list(birth.arguments), birth.result)


def is_overflow(birth: Birth) -> bool:
    """Whether f64 holds a number where the first of its elements is infinite."""
    wide = wide_results(birth)
    return wide is not None and bool(torch.isfinite(wide[birth.first[0]]))


def wide_result(
    op: Any, arguments: list[Any], index: int, of_integers: bool = False
) -> torch.Tensor | None:
    """One result of an op for these arguments in f64, with `of_integers` integers as well; None
    where PyTorch has no such op.
    """
    from opstep.frontends.torch.evaluating import results_of

    def is_widened(dtype: torch.dtype) -> bool:
        return dtype.is_floating_point or (of_integers and dtype is not torch.bool)

    def widened(a: Any) -> Any:
        if isinstance(a, torch.Tensor):
            return a.to(torch.float64, copy=True) if is_widened(a.dtype) else a
        if isinstance(a, torch.dtype):
            return torch.float64 if is_widened(a) else a
        return [widened(x) for x in a] if isinstance(a, list | tuple) else a

    try:
        with undispatched(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            other, arguments = functional(op, arguments, index)
            args, kwargs = as_call(other, [widened(a) for a in arguments])
            return results_of(other(*args, **kwargs))[index if other is op else 0]
    except Exception:  # the op has no f64
        return None
