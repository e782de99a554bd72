"""Checks of what goes into a loss: shapes that broadcast, and labels."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.autograd import _get_sequence_nr

from opstep.frontends.torch.eager.lint.recording import (
    Check,
    Loss,
    directly,
    here,
    inside,
    own_frame,
)
from opstep.frontends.torch.eager.places import _TORCH
from opstep.frontends.torch.sources import Frame

_LOSSES = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
_MAKE_DIMS = ("unsqueeze", "view", "expand", "_unsafe_view")
_BCE = ("binary_cross_entropy", "binary_cross_entropy_with_logits")
_NLL = ("nll_loss_forward", "nll_loss2d_forward")


class Broadcast(Check):
    """[N] against [N, 1] in a loss, so that each result meets each target.

    Outer products on purpose have operands of the same rank, or make a dimension in the expression
    itself. Other than in a loss function, one operand is to be computed from parameters, the other
    one is data, and the loss depends on the result.
    """

    kind = "broadcast"
    ops = ("sub", "rsub", "mul", "div", *_MAKE_DIMS)

    def enter(self) -> None:
        self.on_purpose: set[tuple[str, int]] = set()
        self.seen: dict[int, tuple[Frame, str]] = {}  # by the number of the node

    def op(self, name: str, args: list[Any], result: Any) -> None:
        if name in _MAKE_DIMS:
            if name == "expand" and (frame := inside(*_LOSSES)) is not None:
                a, b = frame.f_locals["input"], frame.f_locals["target"]
                if _is_accident(a, b) and not self._is_on_purpose():
                    self.report(here(), _broadcast_text(frame.f_code.co_name, a, b))
            elif result.dim() > args[0].dim() and (at := directly()):
                self.on_purpose.add(at[:2])
            return
        a, b = args[:2]
        if not (isinstance(b, torch.Tensor) and self.run.made and _is_accident(a, b)):
            return
        computed, given = (a, b) if a.requires_grad else (b, a)
        is_loss = computed.grad_fn is not None and not given.requires_grad
        if is_loss and not self._is_on_purpose() and (at := here()):
            self.seen[_get_sequence_nr() - 1] = at, _broadcast_text(name, a, b)

    def _is_on_purpose(self) -> bool:
        """A dimension is made in the lines of the expression."""
        if (frame := own_frame()) is None:
            return False
        code = frame.f_code
        first, last, *_ = list(code.co_positions())[frame.f_lasti // 2]
        lines = range(first or 0, (last or 0) + 1)
        return any((code.co_filename, line) in self.on_purpose for line in lines)

    def loss(self, loss: Loss) -> None:
        for number in loss.numbers & self.seen.keys():
            self.report(*self.seen.pop(number))


def _is_accident(a: torch.Tensor, b: torch.Tensor) -> bool:
    """One has an axis of 1 that the other has not, and the result more elements than both."""
    low, high = sorted((tuple(a.shape), tuple(b.shape)), key=len)
    same = [n for n in low if n != 1] == [n for n in high if n != 1]
    if len(low) == len(high) or not same:
        return False
    try:
        return math.prod(torch.broadcast_shapes(low, high)) > a.numel()
    except RuntimeError:  # the op has raised it too
        return False


def _broadcast_text(op: str, a: torch.Tensor, b: torch.Tensor) -> str:
    shapes = list(a.shape), list(b.shape), list(torch.broadcast_shapes(a.shape, b.shape))
    return (
        f"{op} of {shapes[0]} and {shapes[1]} gives {shapes[2]}: each result meets the targets of "
        "all others; give both the same shape"
    )


class Labels(Check):
    """Labels that a loss takes, though they cannot be meant."""

    kind = "labels"
    ops = ("_log_softmax", *_NLL, *_BCE)

    def enter(self) -> None:
        self.batches: dict[Frame, list[int]] = {}  # those seen, those with a label to learn from

    def op(self, name: str, args: list[Any], result: Any) -> None:
        if name == "_log_softmax":
            if (frame := inside("cross_entropy")) is not None:
                self._classes(frame.f_locals["input"], frame.f_locals["target"])
        elif name in _BCE:
            target = args[1]
            bad = int(((target < 0) | (target > 1)).sum())
            if bad:
                low, high = target.min().item(), target.max().item()
                self.report(
                    here(),
                    f"{bad:,} of {target.numel():,} targets are outside [0, 1], in which they are "
                    f"probabilities: they reach from {low:g} to {high:g}",
                )
        elif (at := here()) is not None:
            seen = self.batches.setdefault(at, [0, 0])
            ignored = args[4]
            seen[0] += 1
            seen[1] += bool((args[1] != ignored).any())
            self._last_ignored = ignored

    def _classes(self, logits: torch.Tensor, target: torch.Tensor) -> None:
        classes = logits.shape[min(logits.dim() - 1, 1)]
        if classes == 1:
            text = f"the results of {list(logits.shape)} have one class: the loss is always 0"
            self.report(here(), f"{text}; for two classes use binary_cross_entropy_with_logits")
        elif target.is_floating_point() and target.numel():
            top, total = target.max().item(), target.sum().item()
            is_whole = bool((target == target.round()).all())
            if logits.dim() == 1 and is_whole and abs(total - 1) > 1e-3:
                text = f"{classes} results without an axis of classes are taken for {classes} "
                text += f"classes of one sample, and its labels, which add up to {total:g}, "
                self.report(here(), f"{text}for probabilities")
            elif is_whole and top > 1:
                text = f"labels are {target.dtype}, up to {top:g}, and taken for probabilities"
                self.report(here(), f"{text}; class indices are integers, of shape [N]")

    def failed(self, error: BaseException) -> None:
        """PyTorch raises it on a CPU; which label it was is known here."""
        trace = error.__traceback__
        while trace is not None:
            code, found = trace.tb_frame.f_code, trace.tb_frame.f_locals
            if code.co_name in ("cross_entropy", "nll_loss") and "target" in found:
                self._out_of_range(found, trace.tb_frame)
                return
            trace = trace.tb_next

    def _out_of_range(self, found: dict[str, Any], frame: Any) -> None:
        logits, target = found["input"], found["target"]
        if target.is_floating_point():
            return
        classes = logits.shape[min(logits.dim() - 1, 1)]
        bad = ((target < 0) | (target >= classes)) & (target != found["ignore_index"])
        where = bad.reshape(-1).nonzero().reshape(-1)
        while frame is not None and frame.f_code.co_filename.startswith(_TORCH):
            frame = frame.f_back
        if len(where) and frame is not None:
            at = Frame(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
            label = target.reshape(-1)[where[0]].item()
            self.report(
                at,
                f"label {label} (element {int(where[0])} of {target.numel()}) is none of the "
                f"{classes} classes 0 to {classes - 1}; {len(where)} labels are out of range",
            )

    def end(self) -> None:
        for at, (seen, learned) in self.batches.items():
            if not learned:
                text = f"all labels of all {seen} batches are {self._last_ignored}, ignore_index"
                self.report(at, f"{text}: nothing is learned from them")
