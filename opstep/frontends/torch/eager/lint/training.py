"""Checks of who trains what: gradients, optimizers, and weights that are shared."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any

import torch
from torch import nn

from opstep.frontends.torch.eager.lint import recording as r
from opstep.frontends.torch.eager.ops import tensors_in
from opstep.frontends.torch.sources import Frame

STEPS = 20  # of an optimizer, before it is said that something never happens
FEW_STEPS = 5
_CLIPS = ("clip_grad_norm_", "clip_grad_value_", "clip_grad_norm")


class ClipBeforeUnscale(r.Check):
    """Gradients of a scaled loss are clipped: the limit is for unscaled ones."""

    kind = "clip-before-unscale"
    ops = ("_foreach_norm", "linalg_vector_norm", "norm", "_foreach_clamp_min_", "clamp_")

    def enter(self) -> None:
        self.scaled: dict[int, torch.Tensor] = {}  # leaves that have gradients of a scaled loss
        self.scale = 1.0
        self.losses: list[weakref.ref[torch.Tensor]] = []
        self.run.after(torch.amp.GradScaler, "scale", self._scaled)
        self.run.after(torch.amp.GradScaler, "unscale_", self._unscaled)
        self.run.after(torch.amp.GradScaler, "update", lambda *_: self.scaled.clear())

    def _scaled(self, result: Any, scaler: Any, outputs: Any) -> None:
        if scaler.is_enabled():
            self.scale = scaler.get_scale()
            self.losses = [*self.losses, *map(weakref.ref, tensors_in(result))][-16:]

    def _unscaled(self, _: None, scaler: Any, optimizer: Any) -> None:
        for p in r.params_of(optimizer):
            self.scaled.pop(id(p), None)

    def loss(self, loss: r.Loss) -> None:
        if self.scale != 1 and any(ref() is loss.tensor for ref in self.losses):
            self.scaled.update({id(p): p for p in loss.leaves})

    def op(self, name: str, args: list[Any], result: Any) -> None:
        if self.run.updating or (name != "clamp_" and r.inside(*_CLIPS) is None):
            return
        grads = {id(p.grad) for p in self.scaled.values()}
        if any(id(t) in grads for t in tensors_in(args[0])):
            text = f"gradients are clipped that are {self.scale:g} times too large: of a loss that"
            text += " GradScaler scaled; call scaler.unscale_(optimizer) before"
            self.report(r.here(), text)


class NoGradient(r.Check):
    """Parameters that an optimizer has, and no loss reaches."""

    kind = "no-gradient"

    def end(self) -> None:
        every = [p for p in self.run.every if p.root]
        trained = {p.root for p in every if p.reached}
        missing = {
            p for p in every
            if p.optimised and p.trains and not p.reached and not p.written and p.root in trained
        }  # fmt: skip
        for names, first, place in _grouped(self.run, missing):
            where, why = first.cut or (place, "no result of it reaches the loss")
            if not first.cut and not first.used:
                why = "nothing uses it"
            text = f"{names} got no gradient in {self.run.steps} steps: {why}"
            self.report(where or place, text)


def _grouped(run: r.Run, missing: set[r.Param]) -> Iterator[tuple[str, r.Param, Frame | None]]:
    """By the largest module all of whose parameters are missing: its name, one of them, its line.
    None in the first few steps.
    """
    groups: dict[tuple[Any, str], r.Param] = {}
    for p in run.every:
        parts = p.name.split(".") if p in missing and run.steps >= FEW_STEPS else []
        for path in (".".join(parts[: k + 1]) for k in range(len(parts))):
            begin = f"{path}."
            within = (q for q in run.every if q.root == p.root and f"{q.name}.".startswith(begin))
            if all(q in missing for q in within):
                groups.setdefault((p.root, path), p)
                break
    for (root, path), p in groups.items():
        yield path, p, run.places.get((root, path)) or run.places.get((root, p.name))


class NotInOptimizer(r.Check):
    """Parameters that get gradients, and that no optimizer has."""

    kind = "not-in-optimizer"

    def enter(self) -> None:
        self.given: dict[r.Param, Frame | None] = {}  # those with gradients, line of the backward

    def loss(self, loss: r.Loss) -> None:
        for leaf in loss.leaves if loss.in_place else ():
            self.given.setdefault(self.run.param(leaf), loss.at)

    def end(self) -> None:
        trained = {p.root for p in self.run.every if p.root and p.optimised}
        if not any(p.optimised and p.reached for p in self.run.every):
            return
        missing = {
            p for p in self.given
            if p.root and not p.optimised and not p.written
            and (p.root in trained or p.in_training)
        }  # fmt: skip
        for names, first, place in _grouped(self.run, missing):
            text = f"{names} gets gradients, and is in no optimizer: it keeps its first value"
            self.report(place or self.given[first], text)


class Tied(r.Check):
    """One module several times in a list, or one parameter of several layers."""

    kind = "tied"

    def enter(self) -> None:
        self.owners: dict[int, list[tuple[Any, str, Frame | None, Any]]] = {}

    def registered(self, module: nn.Module, name: str, value: Any) -> None:
        if isinstance(value, nn.Parameter):
            owners = [o for o in self.owners.get(id(value), ()) if o[3]() is value]
            one = weakref.ref(module), name, r.here(), weakref.ref(value)
            self.owners[id(value)] = [*owners, one]
        elif isinstance(value, nn.Module) and isinstance(module, nn.ModuleList | nn.Sequential):
            same = [n for n, m in module._modules.items() if m is value and n != name]
            if same and any(True for _ in value.parameters()):
                text = f"{name} is the same {type(value).__name__} as {same[0]}: they have one set"
                self.report(r.here(), f"{text} of weights; make a layer for each")

    def stepping(self, optimizer: Any, params: list[torch.Tensor]) -> None:
        """Modules are complete now: who still has a shared parameter that is trained."""
        given = (self.owners.pop(id(p), []) for p in params)
        for owners in [o for o in given if len(o) > 1]:
            having = [(ref(), name, at) for ref, name, at, _ in owners]
            found = [one for one in having if _is_owner(*one[:2], owners[0][3]())]
            if len({id(m) for m, _, _ in found}) > 1 and not _is_meant([m for m, _, _ in found]):
                (first, name, _), (last, other, at) = found[0], found[-1]
                text = f"{other} of this {type(last).__name__} is the parameter that another"
                text += f" {type(first).__name__} has as {name}: a step changes both"
                self.report(at, text)


def _is_owner(module: Any, name: str, p: Any) -> bool:
    """Not one that is gone, and not what an export makes of a model."""
    return type(module) not in (type(None), nn.Module) and module._parameters.get(name) is p


def _is_meant(modules: list[nn.Module]) -> bool:
    """Embeddings with each other and with the layer of the results; a wrapper and what it wraps."""
    others = [m for m in modules if not isinstance(m, nn.Embedding | nn.EmbeddingBag)]
    is_wrapper = any(m is not n and m in set(n.modules()) for m in modules for n in modules)
    return is_wrapper or len(others) <= min(1, len(modules) - 1)


@dataclass(eq=False)
class _Training:
    """One optimizer's. `idle`: steps at a learning rate of 0; `without`: steps in which no
    parameter had a gradient; `zero`: in which all were 0; `kept`: with those of the step before.
    """

    at: Frame | None
    steps: int = 0
    idle: int = 0
    without: int = 0
    zero: int = 0
    kept: int = 0
    norms: list[float] = field(default_factory=list)
    left: list[Any] = field(default_factory=list)  # after a step: parameter, gradient, version
    is_first: bool = True  # no backward since the step
    cleared: bool = True  # gradients were, since the step
    backward: Frame | None = None


class LossStalls(r.Check):
    """A loss that cannot fall, where it is known why. One that does not fall is no fault by itself:
    those of a GAN or of reinforcement learning need not.
    """

    kind = "loss-stalls"
    ops = ("_softmax", "_log_softmax")

    def enter(self) -> None:
        self.of: dict[int, _Training] = {}
        self.every: list[_Training] = []
        self.losses: dict[Frame | None, list[float]] = {}
        self.softmaxes: list[tuple[weakref.ref[torch.Tensor], Frame | None]] = []
        self.twice: list[tuple[Frame, int]] = []  # calls, with classes
        self.is_leaf = False

    def op(self, name: str, args: list[Any], result: Any) -> None:
        if name == "_softmax":
            self.softmaxes = [*self.softmaxes, (weakref.ref(result), r.here())][-64:]
        elif (frame := r.inside("cross_entropy")) is not None and self.run.made:
            logits = frame.f_locals["input"]
            found = [at for ref, at in self.softmaxes if at and ref() is logits]
            self.twice += [(at, logits.shape[min(logits.dim() - 1, 1)]) for at in found]

    def loss(self, loss: r.Loss) -> None:
        if not loss.in_place:
            return
        self.losses.setdefault(loss.at, []).append(float(loss.tensor))
        self.is_leaf = loss.tensor.grad_fn is None
        for one in self.of.values():
            one.backward = loss.at
            for p, grad, version in one.left:
                is_same = p.grad is grad and (grad._version == version or not one.is_first)
                one.cleared |= not is_same or not bool(grad.any())
            one.is_first = False

    def stepped(self, optimizer: Any, params: list[torch.Tensor]) -> None:
        at = next((at for ref, at in self.run.optimizers if ref() is optimizer), None)
        one = self.of.get(id(optimizer))
        if one is None or one.at != at:
            one = self.of[id(optimizer)] = _Training(at)
            self.every.append(one)
        given = [(p, p.grad) for p in params if p.grad is not None]
        norms = [float((g._values() if g.is_sparse else g).norm()) for _, g in given]
        one.steps += 1
        one.idle += all(float(g.get("lr", 1)) == 0 for g in optimizer.param_groups)
        one.without += not given and any(p.requires_grad for p in params)
        one.zero += bool(given) and not any(norms)
        one.kept += not one.cleared
        one.norms.append(math.hypot(*norms))
        one.left = [(p, g, g._version) for (p, g), n in zip(given, norms, strict=True) if n]
        one.is_first, one.cleared = True, not one.left

    def end(self) -> None:
        for at, classes in self.twice[FEW_STEPS:]:
            floor = math.log(1 + (classes - 1) / math.e)
            text = "cross_entropy takes the softmax itself: of probabilities it cannot fall below"
            self.report(at, f"{text} {floor:.2f} with {classes} classes")
        for one in self.every:
            fell, course = _course(self.losses.get(one.backward, []))
            if one.steps >= STEPS and one.kept >= one.steps - 1:
                text = "gradients are never cleared (zero_grad): each step adds those of all"
                text += f" before; their norm was {one.norms[0]:.3g} at first,"
                self.report(one.backward, f"{text} {one.norms[-1]:.3g} at last")
            elif one.steps >= STEPS and not fell:
                self._judge(one, course)

    def _judge(self, one: _Training, course: str) -> None:
        if one.idle == one.steps:
            self.report(one.at, f"the learning rate is 0 in all {one.steps} steps{course}")
        elif one.without == one.steps and self.is_leaf:
            text = "the loss is the result of no op that autograd knows: it has no gradients"
            self.report(one.backward, f"{text}{course}")
        elif one.without == one.steps and one.backward is not None:
            text = f"no parameter of this optimizer got a gradient in {one.steps} steps: the loss"
            self.report(one.at, f"{text} depends on others{course}")
        elif one.zero == one.steps:
            self.report(one.backward, f"all gradients are 0 in all {one.steps} steps{course}")


def _course(losses: list[float]) -> tuple[bool, str]:
    """Whether the last quarter is lower than the first, beyond their noise; in words."""
    n = len(losses) // 4
    if n < 2 or not all(map(math.isfinite, losses)):
        return False, ""
    first, last = losses[:n], losses[-n:]
    noise = ((stdev(first) ** 2 + stdev(last) ** 2) / n) ** 0.5
    a, b = fmean(first), fmean(last)
    text = f"; the loss is {a:.4g} in the first quarter of its {len(losses)} steps, {b:.4g} in"
    return b < a - max(3 * noise, 1e-6 * abs(a)), f"{text} the last (noise {noise:.2g})"
