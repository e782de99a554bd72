"""Checks of what goes into a loss: shapes that broadcast, and labels."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import _get_sequence_nr  # pyright: ignore

from opstep.frontends.torch.eager.lint import recording as r
from opstep.frontends.torch.eager.places import is_own
from opstep.frontends.torch.sources import Frame

_LOSSES = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
_MAKE_DIMS = ("unsqueeze", "view", "expand", "_unsafe_view")
_BCE = ("binary_cross_entropy", "binary_cross_entropy_with_logits")
_NLL = ("nll_loss_forward", "nll_loss2d_forward")


class Broadcast(r.Check):
    """[N] against [N, 1] in a loss, so that each result meets each target.

    Outer products on purpose have operands of the same rank, or make a dimension in the expression
    itself. Other than in a loss function, one operand is to be computed from parameters, the other
    one is data, and the loss depends on the result.
    """

    kind = "broadcast"
    ops = ("sub", "rsub", "mul", "div", *_MAKE_DIMS)

    def enter(self) -> None:
        self.on_purpose: set[Any] = set()  # lines
        self.seen: dict[int, tuple[Frame, str]] = {}  # by the number of the node

    def op(self, name: str, args: list[Any], result: Any) -> None:
        a, b = args[:2]
        if name == "expand" and (frame := r.inside(*_LOSSES)) is not None:
            a, b = frame.f_locals["input"], frame.f_locals["target"]
            if (text := _grown(frame.f_code.co_name, a, b)) and not self._is_on_purpose():
                self.report(r.here(), text)
        elif name in _MAKE_DIMS:
            if result.dim() > a.dim() and (at := r.directly()):
                self.on_purpose.add(at[:2])
        elif isinstance(b, torch.Tensor) and self.run.made and a.dim() != b.dim():
            computed, given = (a, b) if a.requires_grad else (b, a)
            if computed.grad_fn is None or given.requires_grad or not (text := _grown(name, a, b)):
                return
            if not self._is_on_purpose() and (at := r.here()):
                self.seen[_get_sequence_nr() - 1] = at, text

    def _is_on_purpose(self) -> bool:
        """A dimension is made in the lines of the expression."""
        if (frame := r.own_frame()) is None:
            return False
        code = frame.f_code
        first, last, *_ = list(code.co_positions())[frame.f_lasti // 2]
        lines = range(first or 0, (last or 0) + 1)
        return any((code.co_filename, line) in self.on_purpose for line in lines)

    def loss(self, loss: r.Loss) -> None:
        for number in loss.numbers & self.seen.keys():
            self.report(*self.seen.pop(number))


def _grown(op: str, a: torch.Tensor, b: torch.Tensor) -> str:
    """In words, where both have the same axes but for those of 1, and the result has more elements;
    else "".
    """
    if [n for n in a.shape if n != 1] != [n for n in b.shape if n != 1]:
        return ""
    try:
        shape = torch.broadcast_shapes(a.shape, b.shape)
    except RuntimeError:  # the op raises it too
        return ""
    if shape.numel() <= a.numel():
        return ""
    text = f"{op} of {list(a.shape)} and {list(b.shape)} gives {list(shape)}: each result meets"
    return f"{text} the targets of all others; give both the same shape"


class Labels(r.Check):
    """Labels that a loss takes, though they cannot be meant."""

    kind = "labels"
    ops = ("_log_softmax", *_NLL, *_BCE)

    def enter(self) -> None:
        self.batches: dict[Frame, list[int]] = {}  # all, those with a label that counts, its index

    def op(self, name: str, args: list[Any], result: Any) -> None:
        at = r.here()
        if name == "_log_softmax":
            if (frame := r.inside("cross_entropy")) is not None:
                self.report(at if (text := _classes(frame.f_locals)) else None, text)
        elif name in _BCE:
            text = _improbable({"target": args[1]})
            self.report(at if text else None, text)
        elif at is not None:
            seen = self.batches.setdefault(at, [0, 0, args[4]])
            seen[0] += 1
            seen[1] += bool((args[1] != args[4]).any())

    def failed(self, error: BaseException) -> None:
        """PyTorch raises it on a CPU; which label it was is known here."""
        trace, own = error.__traceback__, None
        while trace is not None:
            frame = trace.tb_frame
            code, found = frame.f_code, frame.f_locals
            if is_own(code.co_filename):
                own = Frame(code.co_filename, trace.tb_lineno, code.co_name)
            elif code.co_name in ("cross_entropy", "nll_loss", *_BCE) and "target" in found:
                text = (_improbable if code.co_name in _BCE else _out_of_range)(found)
                self.report(own if text else None, text)
                return
            trace = trace.tb_next

    def end(self) -> None:
        for at, (seen, counted, ignored) in self.batches.items():
            text = f"all labels of all {seen} batches are {ignored}, ignore_index"
            self.report(None if counted else at, f"{text}: nothing is learned from them")


def _classes(given: dict[str, Any]) -> str:
    logits, target = given["input"], given["target"]
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


def _improbable(given: dict[str, Any]) -> str:
    target = given["target"]
    bad = int(((target < 0) | (target > 1)).sum())
    text = f"{bad:,} of {target.numel():,} targets are no probabilities: they reach from"
    return f"{text} {target.min():g} to {target.max():g}" if bad else ""


def _out_of_range(given: dict[str, Any]) -> str:
    logits, target = given["input"], given["target"].reshape(-1)
    if target.is_floating_point():
        return ""
    classes = logits.shape[min(logits.dim() - 1, 1)]
    bad = ((target < 0) | (target >= classes)) & (target != given["ignore_index"])
    where = bad.nonzero().reshape(-1).tolist()
    text = f"{len(where)} of {len(target)} labels are none of the {classes} classes"
    return f"{text} 0 to {classes - 1}, first {target[where[0]]} at {where[0]}" if where else ""
