"""Checks of what goes into a loss: shapes that broadcast, and labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd import _get_sequence_nr  # pyright: ignore

from opstep.frontends.torch.eager.lint import recording as r
from opstep.frontends.torch.sources import Frame

_LOSSES = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
_BCE = ("binary_cross_entropy", "binary_cross_entropy_with_logits")
_NLL = ("nll_loss_forward", "nll_loss2d_forward")


class Broadcast(r.Check):
    """[N] against [N, 1] in a loss, so that each result meets each target.

    Outer products on purpose have operands of the same rank, or one of which a view has just made
    one of more axes. Other than in a loss function, one operand is to be computed from parameters,
    the other one is data, and the loss depends on the result.
    """

    kind = "broadcast"
    ops = ("expand", "sub", "rsub", "mul", "div")

    def enter(self) -> None:
        self.seen: dict[int, tuple[Frame | None, str]] = {}  # by the number of the node

    def op(self, name: str, args: list[Any]) -> None:
        a, b = args[:2]
        if name == "expand" and (frame := r.inside(*_LOSSES)) is not None:
            a, b = frame.f_locals["input"], frame.f_locals["target"]
            if not _is_made(a):
                self.report(r.here(), _grown(frame.f_code.co_name, a, b))
        elif isinstance(b, torch.Tensor) and self.run.made and a.dim() != b.dim():
            computed, given = (a, b) if a.requires_grad else (b, a)
            if computed.grad_fn is None or given.requires_grad or _is_made(a) or _is_made(b):
                return
            if text := _grown(name, a, b):
                self.seen[_get_sequence_nr() - 1] = r.here(), text

    def loss(self, loss: r.Loss) -> None:
        for number in loss.numbers & self.seen.keys():
            self.report(*self.seen.pop(number))


def _is_made(t: torch.Tensor) -> bool:
    """Whether it is a view that has just got one more axis, of 1."""
    name, before = t.grad_fn.name() if t.grad_fn else "", t.shape
    if name.startswith(("View", "UnsafeView")):
        before = t.grad_fn._saved_self_sym_sizes  # pyright: ignore
    elif t.grad_fn is None and t._base is not None:
        before = t._base.shape
    is_longer = len(before) < t.dim() and _long(before) == _long(t.shape)
    return name.startswith("Unsqueeze") or is_longer


def _long(shape: Sequence[int]) -> list[int]:
    return [n for n in shape if n != 1]


def _grown(op: str, a: torch.Tensor, b: torch.Tensor) -> str:
    """In words, where both have axes of the same lengths, and the result has more elements: than
    both, of a loss function than `a`; else "".
    """
    try:
        shape = torch.broadcast_shapes(a.shape, b.shape)
    except RuntimeError:  # the op raises it too
        return ""
    fewest = a.numel() if op in _LOSSES else max(a.numel(), b.numel())
    if {1, *a.shape} != {1, *b.shape} or shape.numel() <= fewest:
        return ""
    text = f"{op} of {list(a.shape)} and {list(b.shape)} gives {list(shape)}: each result meets"
    return f"{text} the targets of all others; give both the same shape"


class Labels(r.Check):
    """Labels that a loss takes, though they cannot be meant."""

    kind = "labels"
    ops = ("_log_softmax", *_NLL, *_BCE)

    def enter(self) -> None:
        self.batches: dict[Frame, list[int]] = {}  # all, those with a label that counts, its index

    def op(self, name: str, args: list[Any]) -> None:
        at = r.here()
        if name == "_log_softmax":
            if (frame := r.inside("cross_entropy")) is not None:
                self.report(at, _classes(frame.f_locals["input"], frame.f_locals["target"]))
        elif name in _BCE:
            self.report(at, _improbable(args[1]))
        elif at is not None and args[1].numel():
            logits, target, _, _, ignored = args
            self.report(at, _out_of_range(logits.shape[min(logits.dim() - 1, 1)], target, ignored))
            seen = self.batches.setdefault(at, [0, 0, ignored])
            seen[0] += 1
            seen[1] += bool((target != ignored).any())

    def end(self) -> None:
        for at, (seen, counted, ignored) in self.batches.items():
            text = f"all labels of all {seen} batches are {ignored}, ignore_index"
            self.report(None if counted else at, f"{text}: nothing is learned from them")


def _classes(logits: torch.Tensor, target: torch.Tensor) -> str:
    classes = logits.shape[min(logits.dim() - 1, 1)]
    if classes == 1:
        text = f"results of {list(logits.shape)} have one class: the loss is always 0; for two"
        return f"{text} classes use binary_cross_entropy_with_logits"
    if not target.is_floating_point() or not target.numel() or (target != target.round()).any():
        return ""
    top, total = target.max().item(), target.sum().item()
    if logits.dim() == 1 and abs(total - 1) > 1e-3:
        text = f"{classes} results of shape [{classes}] are taken for the classes of one sample,"
        return f"{text} and its labels, which add up to {total:g}, for their probabilities"
    text = f"labels are {target.dtype}, up to {top:g}, and taken for probabilities; class indices"
    return f"{text} are integers, of shape [N]" if top > 1 else ""


def _improbable(target: torch.Tensor) -> str:
    bad = int(((target < 0) | (target > 1)).sum())
    text = f"{bad:,} of {target.numel():,} targets are no probabilities: they reach from"
    return f"{text} {target.min():g} to {target.max():g}" if bad else ""


def _out_of_range(classes: int, target: torch.Tensor, ignored: int) -> str:
    labels = target.reshape(-1)
    bad = ((labels < 0) | (labels >= classes)) & (labels != ignored)
    where = bad.nonzero().reshape(-1).tolist()
    text = f"{len(where)} of {len(labels)} labels are none of the {classes} classes"
    return f"{text} 0 to {classes - 1}, first {labels[where[0]]} at {where[0]}" if where else ""
