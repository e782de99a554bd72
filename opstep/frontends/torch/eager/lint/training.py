"""Checks of who trains what: gradients, optimizers, and weights that are shared."""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any

import torch
from torch import nn

from opstep.frontends.torch.eager.lint.recording import (
    Check,
    Loss,
    Param,
    here,
    inside,
)
from opstep.frontends.torch.eager.ops import tensors_in
from opstep.frontends.torch.sources import Frame

STEPS = 20  # of an optimizer, before it is said that something never happens
FEW_STEPS = 3
_CLIPS = ("clip_grad_norm_", "clip_grad_value_", "clip_grad_norm")


class ClipBeforeUnscale(Check):
    """Gradients of a scaled loss are clipped: the limit is for unscaled ones."""

    kind = "clip-before-unscale"
    ops = ("_foreach_norm", "linalg_vector_norm", "norm", "_foreach_clamp_min_", "clamp_")

    def enter(self) -> None:
        self.scaled: dict[int, torch.Tensor] = {}  # leaves, with gradients of a scaled loss
        self.scale = 1.0
        self.losses: list[weakref.ref[torch.Tensor]] = []
        scaler = torch.amp.GradScaler
        self.run.after(scaler, "scale", self._scaled)
        self.run.after(scaler, "unscale_", self._unscaled)
        self.run.after(scaler, "update", lambda *_: self.scaled.clear())

    def _scaled(self, result: Any, scaler: Any, outputs: Any) -> None:
        if scaler.is_enabled():
            self.scale = scaler.get_scale()
            results = tensors_in(result)
            self.losses = [*self.losses, *(weakref.ref(t) for t in results)][-16:]

    def _unscaled(self, _: None, scaler: Any, optimizer: Any) -> None:
        for group in optimizer.param_groups:
            for p in group["params"]:
                self.scaled.pop(id(p), None)

    def loss(self, loss: Loss) -> None:
        if self.scale != 1 and any(r() is loss.tensor for r in self.losses):
            self.scaled.update({id(p): p for p in loss.leaves})

    def op(self, name: str, args: list[Any], result: Any) -> None:
        if not self.scaled or (inside(*_CLIPS) is None and name != "clamp_"):
            return
        grads = {id(p.grad) for p in self.scaled.values()}
        clipped = [t for t in tensors_in(args[0]) if id(t) in grads]
        if clipped and not self.run.updating:
            text = f"gradients are clipped that are {self.scale:g} times too large: of a loss that"
            text += " GradScaler scaled; call scaler.unscale_(optimizer) before"
            self.report(here(), text)


class NoGradient(Check):
    """Parameters that an optimizer has, and no loss reaches."""

    kind = "no-gradient"

    def end(self) -> None:
        if self.run.steps < FEW_STEPS:
            return
        every = [p for p in self.run.every if p.root]
        trained = {p.root for p in every if p.reached}
        missing = [p for p in every if _is_missed(p) and p.root in trained]
        for names, first, place in _grouped(missing, every, self.run.places):
            where, why = first.cut or (place, "no result of it reaches the loss")
            if first.cut is None and not first.used:
                why = "nothing uses it"
            text = f"{names} got no gradient in {self.run.steps} steps: {why}"
            self.report(where or place, text)


def _is_missed(p: Param) -> bool:
    return p.optimised and p.trains and not p.reached and not p.written


def _grouped(missing: list[Param], every: list[Param], places: dict[tuple[Any, str], Frame]):
    """By the largest module all of whose parameters are missing: names, one of them, and the line
    of that module.
    """
    groups: dict[tuple[Any, str], list[Param]] = {}
    for p in missing:
        parts = p.name.split(".")
        paths = [".".join(parts[: k + 1]) for k in range(len(parts))]
        for path in paths:
            within = [q for q in every if q.root == p.root and f"{q.name}.".startswith(f"{path}.")]
            if all(q in missing for q in within):
                groups.setdefault((p.root, path), []).append(p)
                break
    for (root, path), found in groups.items():
        place = places.get((root, path)) or places.get((root, found[0].name))
        yield path, found[0], place


class NotInOptimizer(Check):
    """Parameters that get gradients, and that no optimizer has."""

    kind = "not-in-optimizer"

    def enter(self) -> None:
        self.given: dict[Param, Frame] = {}  # those that a backward gives gradients, its line

    def loss(self, loss: Loss) -> None:
        for leaf in loss.leaves if loss.in_place and loss.at else ():
            if isinstance(leaf, nn.Parameter):
                self.given.setdefault(self.run.param(leaf), loss.at)

    def end(self) -> None:
        every = [p for p in self.run.every if p.root]
        if self.run.steps < FEW_STEPS or not any(p.optimised and p.reached for p in every):
            return
        trained = {p.root for p in every if p.optimised}
        missing = [
            p for p in every
            if p in self.given and not p.optimised and not p.written
            and (p.root in trained or p.in_training)
        ]  # fmt: skip
        for names, first, place in _grouped(missing, every, self.run.places):
            text = f"{names} gets gradients, and is in no optimizer: it keeps its first value"
            self.report(place or self.given[first], text)


class Tied(Check):
    """One module several times in a list, or one parameter of several layers."""

    kind = "tied"

    def enter(self) -> None:
        self.owners: dict[int, list[tuple[Any, str, Frame | None, Any]]] = {}
        self.shared: list[int] = []

    def registered(self, module: nn.Module, name: str, value: Any) -> None:
        if isinstance(value, nn.Parameter):
            owners = [o for o in self.owners.get(id(value), ()) if o[3]() is value]
            if any(o[0]() is not module for o in owners):
                self.shared.append(id(value))
            owners.append((weakref.ref(module), name, here(), weakref.ref(value)))
            self.owners[id(value)] = owners
        elif isinstance(value, nn.Module) and isinstance(module, nn.ModuleList | nn.Sequential):
            same = [n for n, m in module._modules.items() if m is value and n != name]
            if same and any(True for _ in value.parameters()):
                text = f"{name} is the same {type(value).__name__} as {same[0]}: they have one set"
                self.report(here(), f"{text} of weights; make a layer for each")

    def stepping(self, optimizer: Any, params: list[torch.Tensor]) -> None:
        self._settle()

    def end(self) -> None:
        self._settle()

    def _settle(self) -> None:
        """Now that modules are complete: who still has a shared parameter."""
        for key in self.shared:
            having = [
                (m, name, at) for ref, name, at, p in self.owners[key]
                if (m := ref()) is not None and p() is not None and m._parameters.get(name) is p()
            ]  # fmt: skip
            (first, name, _), (last, other, at) = having[0], having[-1]
            if first is last or _is_meant([m for m, _, _ in having]):
                continue
            text = f"{other} of this {type(last).__name__} is the parameter that another"
            self.report(at, f"{text} {type(first).__name__} has as {name}: one step changes both")
        self.shared.clear()


def _is_meant(modules: list[nn.Module]) -> bool:
    """Embeddings with each other and with the layer of the results; a wrapper and what it wraps."""
    embeds = [isinstance(m, nn.Embedding | nn.EmbeddingBag) for m in modules]
    layers = [m for m, is_one in zip(modules, embeds, strict=True) if not is_one]
    if any(embeds) and len(layers) <= 1:
        return True
    return any(m is not n and m in set(n.modules()) for m in modules for n in modules)


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


class LossStalls(Check):
    """A loss that cannot fall, where it is known why. One that does not fall is no fault by itself:
    those of a GAN or of reinforcement learning need not.
    """

    kind = "loss-stalls"
    ops = ("_softmax", "_log_softmax")

    def enter(self) -> None:
        self.of: dict[int, _Training] = {}
        self.every: list[_Training] = []
        self.losses: dict[Frame, list[float]] = {}
        self.softmaxes: list[tuple[weakref.ref[torch.Tensor], Frame | None]] = []
        self.twice: dict[Frame, tuple[int, int]] = {}  # calls, classes
        self.is_leaf = False

    def op(self, name: str, args: list[Any], result: Any) -> None:
        if name == "_softmax":
            self.softmaxes = [*self.softmaxes, (weakref.ref(result), here())][-64:]
        elif (frame := inside("cross_entropy")) is not None and self.run.made:
            logits = frame.f_locals["input"]
            at = next((at for ref, at in self.softmaxes if ref() is logits), None)
            if at is not None:
                classes = logits.shape[min(logits.dim() - 1, 1)]
                self.twice[at] = self.twice.get(at, (0, 0))[0] + 1, classes

    def loss(self, loss: Loss) -> None:
        if loss.at is None or not loss.in_place:
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
        one = self.of.get(id(optimizer))
        if one is None or one.at != self.run.line_of(optimizer):
            one = self.of[id(optimizer)] = _Training(self.run.line_of(optimizer))
            self.every.append(one)
        one.steps += 1
        one.idle += all(float(g.get("lr", 1)) == 0 for g in optimizer.param_groups)
        given = [(p, p.grad) for p in params if p.grad is not None]
        norms = [float((g._values() if g.is_sparse else g).norm()) for _, g in given]
        one.without += not given and any(p.requires_grad for p in params)
        one.zero += bool(given) and not any(norms)
        one.kept += not one.cleared
        one.norms.append(sum(n * n for n in norms) ** 0.5)
        one.left = [(p, g, g._version) for (p, g), n in zip(given, norms, strict=True) if n]
        one.is_first, one.cleared = True, not one.left

    def end(self) -> None:
        for at, (calls, classes) in self.twice.items():
            if calls >= FEW_STEPS:
                floor = math.log(1 + (classes - 1) / math.e)
                text = "cross_entropy takes the softmax itself: of probabilities it cannot fall"
                self.report(at, f"{text} below {floor:.2f} with {classes} classes")
        for one in self.every:
            if one.steps >= STEPS:
                self._judge(one)

    def _judge(self, one: _Training) -> None:
        fell, course = _course(self.losses.get(one.backward, []) if one.backward else [])
        if one.kept >= one.steps - 1:
            text = "gradients are never cleared (zero_grad): each step adds those of all before;"
            text += f" their norm was {one.norms[0]:.3g} at first, {one.norms[-1]:.3g} at last"
            self.report(one.backward, text)
        elif fell:
            return
        elif one.idle == one.steps:
            self.report(one.at, f"the learning rate is 0 in all {one.steps} steps{course}")
        elif one.without == one.steps and one.backward is not None:
            if self.is_leaf:
                text = "the loss is no result of an op that autograd knows: it has no gradients"
                self.report(one.backward, f"{text}{course}")
                return
            text = f"no parameter of this optimizer got a gradient in {one.steps} steps: the loss"
            self.report(one.at, f"{text} depends on others{course}")
        elif one.zero == one.steps:
            text = f"all gradients are 0 in all {one.steps} steps{course}"
            self.report(one.backward, text)


def _course(losses: list[float]) -> tuple[bool, str]:
    """Whether the last quarter is lower than the first, with the noise that each has; in words."""
    n = len(losses) // 4
    if n < 2:
        return False, ""
    first, last = losses[:n], losses[-n:]
    noise = ((stdev(first) ** 2 + stdev(last) ** 2) / n) ** 0.5
    a, b = fmean(first), fmean(last)
    text = f"; the loss is {a:.4g} in the first quarter of its {len(losses)} steps, {b:.4g} in"
    return b < a - max(3 * noise, 1e-6 * abs(a)), f"{text} the last (noise {noise:.2g})"
