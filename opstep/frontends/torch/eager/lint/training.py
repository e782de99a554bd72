"""Checks of who trains what: gradients, optimizers, and weights that are shared."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any

import torch
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from opstep.frontends.torch.eager.lint import recording as r
from opstep.frontends.torch.eager.ops import tensors_in
from opstep.frontends.torch.eager.places import frames
from opstep.frontends.torch.sources import Frame

STEPS = 20  # of an optimizer, before it is said that something never happens
_UNSCALE = "_amp_foreach_non_finite_check_and_unscale_"
_FACTORS = ("mul_", "div_", "_foreach_mul_", "_foreach_div_")
_CLAMPS = (
    "clamp", "clamp_", "clamp_min_", "clamp_max_", "_foreach_clamp_min_", "_foreach_clamp_max_",
)  # fmt: skip


class ClipBeforeUnscale(r.Check):
    """Gradients of a scaled loss are clipped: the limit is for unscaled ones. A factor that is a
    tensor is computed from their norm; one that is a number is no limit.
    """

    kind = "clip-before-unscale"
    ops = (_UNSCALE, *_FACTORS, *_CLAMPS)

    def enter(self) -> None:
        self.scaled = WeakIdKeyDictionary()  # the scale of leaves that have scaled gradients
        self.losses = WeakIdKeyDictionary()
        self.run.after(torch.amp.GradScaler, "scale", self._scaled)

    def _scaled(self, result: Any, scaler: Any, outputs: Any) -> None:
        for t in tensors_in(result) if scaler.is_enabled() else ():
            self.losses[t] = scaler.get_scale()

    def loss(self, loss: r.Loss) -> None:
        scale = self.losses.get(loss.tensor, 1.0)
        for leaf in loss.leaves:
            self.scaled.pop(leaf, None)
            if scale != 1:
                self.scaled[leaf] = scale

    def op(self, name: str, args: list[Any]) -> None:
        given = {t.data_ptr() for t in tensors_in(args[0])} if self.scaled else set()
        factor = args[1] if name in _FACTORS else 1.0
        if self.run.updating or not isinstance(factor, float | int | torch.Tensor):
            return
        for p in [p for p in self.scaled if p.grad is not None and p.grad.data_ptr() in given]:
            is_one = not isinstance(factor, torch.Tensor) or factor.numel() == 1
            change = self.scaled[p] ** (-1 if "div" in name else 1) * (factor if is_one else 0)
            if name == _UNSCALE or math.isclose(change, 1.0, rel_tol=1e-4):
                del self.scaled[p]
            elif name in _CLAMPS or (is_one and isinstance(factor, torch.Tensor)):
                text = f"gradients are clipped that are {self.scaled[p]:g} times too large: of a"
                text += " loss that GradScaler scaled; call scaler.unscale_(optimizer) before"
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
        for part in self.run.largest(missing):
            first = part.params[0]
            where, why = first.cut or (part.at, "no result of it reaches the loss")
            if not first.cut and not first.used:
                why = "nothing uses it"
            text = f"{part.path} got no gradient in {self.run.steps} steps: {why}"
            self.report(where or part.at, text)


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
        for part in self.run.largest(missing):
            text = f"{part.path} gets gradients, and is in no optimizer: it keeps its first value"
            self.report(part.at or self.given[part.params[0]], text)


class Tied(r.Check):
    """One module several times in a list or as a default argument, or one parameter of several
    layers.
    """

    kind = "tied"

    def scanned(self, modules: Iterable[nn.Module]) -> None:
        holders: dict[int, list[tuple[nn.Module, str]]] = {}
        values: dict[int, Any] = {}
        exported = (torch.jit.ScriptModule, torch.fx.GraphModule)
        for module in (m for m in modules if not isinstance(m, exported)):
            for name, value in (*module._parameters.items(), *module._modules.items()):
                if isinstance(value, nn.Module | nn.Parameter):
                    values[id(value)] = value
                    holders.setdefault(id(value), []).append((module, name))
        for key, found in holders.items():
            if len(found) > 1 and _is_mistake(values[key], [m for m, _ in found]):
                (first, name), (last, other) = found[0], found[-1]
                text = f"{other} of {type(last).__name__} is the same {type(values[key]).__name__}"
                text += f" as {name} of {'it' if first is last else 'another'}: they have one set"
                at = self.run.lines.get(values[key])
                self.report(at, f"{text} of weights; make one for each")


def _is_mistake(value: Any, owners: list[nn.Module]) -> bool:
    """Shared on purpose are parameters of embeddings with each other and with the layer of the
    results, and those of a wrapper and what it wraps.
    """
    lists = [id(m) for m in owners if isinstance(m, nn.ModuleList | nn.Sequential)]
    if isinstance(value, nn.Module):
        begins: list[Any] = [type(m).__init__ for m in owners]
        defaults = (d for begin in begins for d in getattr(begin, "__defaults__", None) or ())
        is_twice = len(lists) > len(set(lists)) or any(d is value for d in defaults)
        return is_twice and any(True for _ in value.parameters())
    if len({id(m) for m in owners}) == 1:
        return isinstance(owners[0], nn.ParameterList)
    others = [m for m in owners if not isinstance(m, nn.Embedding | nn.EmbeddingBag)]
    is_wrapper = any(m is not n and m in set(n.modules()) for m in owners for n in owners)
    is_export = nn.Module in map(type, owners)  # modules of no class of their own
    return not (is_wrapper or is_export or len(others) <= min(1, len(owners) - 1))


@dataclass(eq=False)
class _Training:
    """One optimizer's. `left`: parameters and gradients after a step; `cleared`: gradients were
    since; `comes`: a backward has reached a parameter since, as one had `came` times.
    """

    at: Frame | None
    params: list[r.Param]
    steps: int = 0
    causes: Counter[str] = field(default_factory=Counter)  # why steps change nothing
    norms: list[float] = field(default_factory=list)
    left: list[Any] = field(default_factory=list)
    cleared: bool = True
    comes: bool = False
    came: int = 0
    backward: Frame | None = None


_MOVES = (
    "View", "UnsafeView", "ReshapeAlias", "Squeeze", "Unsqueeze", "Transpose", "Permute", "Select",
    "Slice", "Clone", "ToCopy", "T",
)  # fmt: skip
_OF_LOGITS = {
    "_log_softmax": ("Softmax", "cross_entropy takes the softmax itself"),
    "binary_cross_entropy_with_logits": ("Sigmoid", "the loss takes the sigmoid itself"),
    "nll_loss_forward": ("Softmax", "nll_loss takes logarithms of probabilities"),
    "nll_loss2d_forward": ("Softmax", "nll_loss takes logarithms of probabilities"),
}


class LossStalls(r.Check):
    """A loss that cannot fall, where it is known why. One that does not fall is no fault by itself:
    those of a GAN or of reinforcement learning need not.
    """

    kind = "loss-stalls"
    ops = tuple(_OF_LOGITS)

    def enter(self) -> None:
        self.of = WeakIdKeyDictionary()
        self.every: list[_Training] = []
        self.losses: dict[Frame | None, list[float]] = {}
        self.twice: list[tuple[Frame, str, int]] = []
        self.is_leaf = False

    def op(self, name: str, args: list[Any]) -> None:
        logits, node = args[0], args[0].grad_fn
        while node is not None and node.name().startswith(_MOVES):
            node = node.next_functions[0][0]
        wrong, text = _OF_LOGITS[name]
        if node is None or not node.name().startswith(wrong):
            return
        if name != "_log_softmax" or r.inside("cross_entropy") is not None:
            made = self.run.watcher.births.made_at(node)
            for at in frames(made.stack)[:1] if made else ():
                self.twice.append((at, text, logits.shape[min(logits.dim() - 1, 1)]))

    def constructed(self, optimizer: Any) -> None:
        params = [self.run.param(p) for p in r.params_of(optimizer)]
        self.of[optimizer] = one = _Training(r.here(), params)
        self.every.append(one)

    def loss(self, loss: r.Loss) -> None:
        if not loss.in_place:
            return
        self.losses.setdefault(loss.at, []).append(float(loss.tensor))
        self.is_leaf = loss.tensor.grad_fn is None
        leaves = set(map(self.run.param, loss.leaves))
        for one in self.every:
            one.backward = loss.at
            one.cleared |= any(p.grad is not g or not bool(g.any()) for p, g in one.left)
            if not leaves.isdisjoint(one.params):
                one.comes = True
                one.came += 1

    def stepped(self, optimizer: Any, params: list[torch.Tensor]) -> None:
        if (one := self.of.get(optimizer)) is None:
            return
        one.params, one.steps = [self.run.param(p) for p in params], one.steps + 1
        given = [(p, p.grad) for p in params if p.grad is not None]
        norms = [float((g._values() if g.is_sparse else g).norm()) for _, g in given]
        if all(float(g.get("lr", 1)) == 0 for g in optimizer.param_groups):
            one.causes["rate"] += 1
        if not one.cleared:
            one.causes["kept"] += 1
        elif not any(norms):
            one.causes["without" if not one.comes else "zero" if given else "gone"] += 1
        one.norms.append(math.hypot(*norms))
        one.left = [(p, g) for (p, g), n in zip(given, norms, strict=True) if n]
        one.cleared, one.comes = not one.left, False

    def end(self) -> None:
        for at, text, classes in self.twice[r.FEW_STEPS :]:
            if text.startswith("cross"):
                floor = math.log(1 + (classes - 1) / math.e)
                text += (
                    f": of probabilities it cannot fall below {floor:.2f} with {classes} classes"
                )
            self.report(at, text)
        for one in self.every:
            if one.steps >= STEPS:
                self._judge(one, *_course(self.losses.get(one.backward, [])))
            elif not one.steps and one.came >= STEPS:
                idle = not any(p.steps or p.written for p in one.params)
                text = f"its step was never called, in {one.came} backwards of its parameters"
                self.report(one.at if idle else None, text)

    def _judge(self, one: _Training, fell: bool, course: str) -> None:
        n = one.steps
        always = {c for c, times in one.causes.items() if times >= n - (c == "kept")}
        if "kept" in always:
            text = "gradients are never cleared (zero_grad): each step adds those of all"
            text += f" before; their norm was {one.norms[0]:.3g} at first,"
            self.report(one.backward, f"{text} {one.norms[-1]:.3g} at last")
        elif (idle := one.causes["rate"]) * 2 > n and idle >= STEPS:
            share = f"all {n}" if idle == n else f"{idle} of {n}"
            self.report(one.at, f"the learning rate is 0 in {share} steps{course}")
        elif fell or one.backward is None:
            return
        elif "gone" in always:
            text = f"its gradients are cleared before the optimizer uses them, in all {n} steps"
            self.report(one.backward, f"{text}{course}")
        elif "zero" in always:
            self.report(one.backward, f"all gradients are 0 in all {n} steps{course}")
        elif "without" in always and self.is_leaf:
            text = "the loss is the result of no op that autograd knows: it has no gradients"
            self.report(one.backward, f"{text}{course}")
        elif "without" in always:
            text = f"no parameter of this optimizer got a gradient in {n} steps: the loss"
            self.report(one.at, f"{text} depends on others{course}")


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
