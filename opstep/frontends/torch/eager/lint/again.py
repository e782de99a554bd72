"""Checks of what a layer does: units that are dead, and what shows when it runs again."""

from __future__ import annotations

import copy
import inspect
import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from opstep.frontends.torch.eager.lint.recording import Check, here, unnoticed
from opstep.frontends.torch.eager.places import is_own
from opstep.frontends.torch.sources import Frame

_LAYERS = (
    "Addmm", "Mm", "Convolution", "MkldnnConvolution", "NativeBatchNorm", "NativeLayerNorm",
    "NativeGroupNorm", "View", "UnsafeView", "ReshapeAlias", "Transpose",
)  # fmt: skip
DEAD_SHARE, FEWEST_UNITS = 0.6, 8
FEWEST_BATCHES, FEWEST_ELEMENTS = 3, 64
DIFFERENCE = 0.3  # of results in eval() from those in train(), in their standard deviations
SETTLED = 20  # batches after which running statistics say something
MOST_MODELS = 4  # that are kept to the end of the script, with a batch each
POINTS, STEP, TOLERANCE = 12, 1e-4, 1e-2  # finite differences


@dataclass
class _Units:
    last: torch.Tensor  # batch in which each was last above 0
    layer: Any
    at: Frame
    batches: int = 0
    elements: int = 0  # of one unit


class Dead(Check):
    """Units of a layer that a ReLU gives 0 for, in all batches since some early one."""

    kind = "dead"
    ops = ("relu", "relu_", "clamp_min", "clamp", "hardtanh", "hardtanh_")

    def enter(self) -> None:
        self.layers: dict[Any, _Units] = {}

    def op(self, name: str, args: list[Any], result: Any) -> None:
        node = args[0].grad_fn
        low = args[1] if len(args) > 1 else 0
        if node is None or low != 0 or not node.name().startswith(_LAYERS) or result.dim() < 2:
            return
        is_last = result.dim() == 2 or (result.dim() == 3 and not _is_of_channels(node))
        axis = result.dim() - 1 if is_last else 1
        units = result.shape[axis]
        if units < FEWEST_UNITS or (at := here()) is None:
            return
        leaf = _nearest_leaf(node)
        key = id(leaf), at[:2], units
        if key not in self.layers:
            layer = self.run.param(leaf) if leaf is not None else None
            self.layers[key] = _Units(torch.zeros(units), layer, at)
        one = self.layers[key]
        one.batches += 1
        one.elements += result.numel() // units
        alive = (result > 0).movedim(axis, 0).reshape(units, -1).any(1)
        one.last[alive.cpu()] = one.batches

    def end(self) -> None:
        for one in self.layers.values():
            fewest = max(FEWEST_BATCHES, one.batches / 2)
            fewest = max(fewest, FEWEST_ELEMENTS * one.batches / max(one.elements, 1))
            dead = one.batches - one.last >= fewest
            count, units = int(dead.sum()), len(dead)
            if count >= DEAD_SHARE * units:
                name = one.layer.name.rpartition(".")[0] if one.layer else ""
                since = one.batches - int(one.last[dead].max())
                text = f"{count} of {units} units{f' of {name}' if name else ''} are 0 for all"
                self.report(one.at, f"{text} elements of the last {since} of {one.batches} batches")


def _is_of_channels(node: Any) -> bool:
    return "Conv" in node.name() or "BatchNorm" in node.name() or "GroupNorm" in node.name()


def _nearest_leaf(node: Any) -> torch.Tensor | None:
    """The parameter of the layer that a result is from."""
    level = [node]
    for _ in range(4):
        for one in level:
            if (leaf := getattr(one, "variable", None)) is not None:
                return leaf
        level = [n for one in level for n, _ in one.next_functions if n is not None]
    return None


class EvalDiffers(Check):
    """Batch norms whose running statistics are not those of the batches: a copy of the model runs
    again on its last batch, in eval() with and without them. Dropout is off in both.
    """

    kind = "eval-differs"

    def enter(self) -> None:
        self.models: OrderedDict[int, list[Any]] = OrderedDict()
        self.turned: dict[int, Frame | None] = {}  # where eval() was called, by module
        self.run.after(nn.Module, "eval", self._turned)

    def _turned(self, _: Any, module: nn.Module) -> None:
        self.turned[id(module)] = here()

    def called(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if any(_has_statistics(m) for m in module.modules()):
            given = pytree.tree_map_only(torch.Tensor, torch.detach, (args, kwargs))
            trained = self.models.pop(id(module), [module, None, 0, 0])
            in_eval = trained[3] + (not module.training)
            self.models[id(module)] = [module, given, trained[2] + 1, in_eval]
            if len(self.models) > MOST_MODELS:
                self.models.popitem(last=False)

    def end(self) -> None:
        trained = {id(p.ref()) for p in self.run.every if p.optimised}
        for module, (args, kwargs), calls, in_eval in self.models.values():
            if calls >= SETTLED and any(id(p) in trained for p in module.parameters()):
                with unnoticed(), torch.no_grad():
                    found = _compared(module, args, kwargs)
                if found is not None:
                    self._report(module, found, calls, in_eval)

    def _report(self, module: nn.Module, found: Any, calls: int, in_eval: int) -> None:
        difference, path, norm, mean, var = found
        text = f"the model's results in eval() are {difference:.2g} of their standard deviation"
        text += f" from those in train(): running mean and variance of {path} are "
        text += f"{_amount(norm.running_mean)} and {_amount(norm.running_var)}, those of the last "
        text += f"batch {_amount(mean)} and {_amount(var)}"
        original = module.get_submodule(path)
        if in_eval * 2 > calls:
            text += f"; it was in eval() in {in_eval} of {calls} calls with gradients"
            at = self.turned.get(id(module))
        else:
            text += f"; momentum is {norm.momentum}"
            at = None
        names = ("weight", "running_mean")
        lines = [self.run.lines.get((id(original), n)) for n in names]
        self.report(at or lines[0] or lines[1], text)


def _amount(t: torch.Tensor) -> str:
    return f"{float(t.mean()):.3g}"


def _has_statistics(module: nn.Module) -> bool:
    is_norm = isinstance(module, nn.modules.batchnorm._NormBase)
    return is_norm and module.running_mean is not None


def _compared(module: nn.Module, args: Any, kwargs: Any) -> Any:
    """How much the results differ, and of the norm that is furthest off: its path, itself, the
    batch's mean and variance. None where they are near.
    """
    for m in (one := copy.deepcopy(module)).modules():
        for hooks in (m._forward_hooks, m._forward_pre_hooks):
            hooks.clear()
    one.eval()
    norms = {p: m for p, m in one.named_modules() if _has_statistics(m)}
    frozen = {p for p, m in module.named_modules() if p in norms and not m.training}
    if module.training:  # those that the script has frozen stay as they are
        norms = {p: m for p, m in norms.items() if p not in frozen}
    inputs: dict[str, torch.Tensor] = {}
    for path, m in norms.items():
        m.register_forward_pre_hook(lambda _, x, path=path: inputs.update({path: x[0]}))
    before = one(*copy.deepcopy(args), **copy.deepcopy(kwargs))
    off = {p: _off(norms[p], x) for p, x in inputs.items()}
    kept = {p: copy.deepcopy(m) for p, m in norms.items()}
    for m in norms.values():
        m.train()
    after = one(*copy.deepcopy(args), **copy.deepcopy(kwargs))
    path = max(off, key=lambda p: off[p][0], default=None)
    if path is None or not off[path][0]:
        return None
    difference = max(map(_difference, *map(_floats, (before, after))), default=0.0)
    if difference < DIFFERENCE:
        return None
    return difference, path, kept[path], *off[path][1:]


def _off(norm: Any, x: torch.Tensor) -> tuple[float, torch.Tensor, torch.Tensor]:
    """How far the statistics are from a batch's beyond what chance does, 0 for near; the batch's."""
    dims = [d for d in range(x.dim()) if d != 1]
    var, mean = torch.var_mean(x.double(), dims, correction=0)
    n = x.numel() // x.shape[1]
    shift = float(((norm.running_mean - mean).abs() / (var + norm.eps).sqrt()).median())
    spread = (norm.running_var.double() + norm.eps).log() - (var + norm.eps).log()
    ratio = float(spread.median().abs())
    is_off = shift > 0.5 + 3 / math.sqrt(n) or ratio > math.log(2) + 3 * math.sqrt(2 / n)
    is_off |= norm.momentum == 0 and (shift > 0.1 or ratio > 0.1)
    return (shift + ratio if is_off else 0.0), mean, var


def _floats(results: Any) -> list[torch.Tensor]:
    found = [t for t in pytree.tree_leaves(results) if isinstance(t, torch.Tensor)]
    return [t for t in found if t.is_floating_point()]


def _difference(a: torch.Tensor, b: torch.Tensor) -> float:
    if a.shape != b.shape or not a.numel():
        return 0.0
    spread = b.std() if b.numel() > 1 else b.abs()
    return float((a - b).square().mean().sqrt() / spread) if spread else 0.0


class FunctionGradient(Check):
    """A custom `Function` whose backward is not the derivative of its forward: both run again in
    f64, next to finite differences at some elements.

    On purpose are: any backward of a forward that gives its operand as it is (reversed, scaled,
    clipped gradients), anything where the forward is constant in an operand at all of the elements
    (straight through, surrogates), and no gradient at all. A factor that is missing elsewhere is
    not. Elements at which the forward has a kink or a jump are left out.
    """

    kind = "function-gradient"

    def enter(self) -> None:
        self.tried: dict[Any, int] = {}
        self.run.after(torch.autograd.Function, "apply", self._applied)

    def _applied(self, result: Any, function: Any, *args: Any, **kwargs: Any) -> None:
        code = getattr(inspect.unwrap(function.backward), "__code__", None)
        is_new = self.tried.get(function, 0) < 2
        if code is None or not is_new or not is_own(code.co_filename) or kwargs:
            return
        if any(isinstance(a, torch.Tensor) and a.requires_grad and a.numel() for a in args):
            self.tried[function] = self.tried.get(function, 0) + 1
            self.run.ask("compare", function, args, code, to=[self])

    def compare(self, function: Any, args: Any, code: Any) -> None:
        try:
            with unnoticed():
                found = _wrong(function, args)
        except (RuntimeError, TypeError, ValueError, NotImplementedError):
            return  # it does not take f64
        if found:
            last = max(line for *_, line in code.co_lines() if line)
            self.report(Frame(code.co_filename, last, code.co_name), found)


def _wrong(function: Any, args: Any) -> str:
    given = [
        a.detach().to(torch.float64 if a.is_floating_point() else a.dtype, copy=True)
        if isinstance(a, torch.Tensor) else a
        for a in args
    ]  # fmt: skip
    wanted = [
        k for k, a in enumerate(args)
        if isinstance(a, torch.Tensor) and a.requires_grad and a.is_floating_point() and a.numel()
    ]  # fmt: skip
    for k in wanted:
        given[k].requires_grad_()

    def value() -> tuple[Any, torch.Tensor]:
        torch.manual_seed(0)
        results = _floats(function.apply(*(a.clone() if k in wanted else a for k, a in
                                           enumerate(given))))
        return results, sum((r * _weights(r)).sum() for r in results if r.requires_grad)

    results, total = value()
    if any(r.shape == given[k].shape and torch.equal(r, given[k]) for r in results for k in wanted):
        return ""
    grads = torch.autograd.grad(total, [given[k] for k in wanted], allow_unused=True)
    texts = []
    for k, grad in zip(wanted, grads, strict=True):
        if grad is None or not grad.any():
            continue
        pairs = _slopes(given[k], grad, float(total), lambda: float(value()[1]))
        if pairs and not any(slope for slope, _ in pairs):
            return ""
        differing = [(s, g) for s, g in pairs if s and abs(s - g) > TOLERANCE * max(abs(s), abs(g))]
        if len(differing) * 4 > len(pairs):
            slope, got = differing[0]
            texts.append(
                f"backward gives {got / slope:.3g} times the slope of the forward for operand {k} "
                f"(finite differences in f64), at {len(differing)} of {len(pairs)} elements"
            )
    return "; ".join(texts)


def _slopes(x: torch.Tensor, grad: torch.Tensor, here: float, value: Any):
    """At some elements the slope by finite differences, where it is the same on both sides, and
    that of the backward.
    """
    found = []
    flat = x.detach().view(-1)
    for at in torch.linspace(0, len(flat) - 1, min(POINTS, len(flat))).long().tolist():
        kept = float(flat[at])
        step = STEP * max(1.0, abs(kept))
        flat[at] = kept + step
        above = value()
        flat[at] = kept - step
        below = value()
        flat[at] = kept
        slope = (above - below) / (2 * step)
        sides = (above - here) / step, (here - below) / step
        if abs(sides[0] - sides[1]) <= TOLERANCE * max(abs(s) for s in sides):
            found.append((slope, float(grad.reshape(-1)[at])))
    return found


def _weights(t: torch.Tensor) -> torch.Tensor:
    """Small, so that a backward that clips gradients does not."""
    return 1e-3 * (1 + torch.arange(t.numel(), dtype=torch.float64).sin() / 2).view(t.shape)
