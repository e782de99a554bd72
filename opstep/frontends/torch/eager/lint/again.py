"""Checks of what a layer does: units that are dead, and what shows when it runs again."""

from __future__ import annotations

import copy
import inspect
import math
from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from opstep.frontends.torch.eager.lint import recording as r
from opstep.frontends.torch.eager.places import is_own
from opstep.frontends.torch.sources import Frame

_LAYERS = (
    "Addmm", "Mm", "Convolution", "MkldnnConvolution", "NativeBatchNorm", "NativeLayerNorm",
    "NativeGroupNorm", "View", "UnsafeView", "ReshapeAlias", "Transpose",
)  # fmt: skip
_OF_CHANNELS = ("Convolution", "MkldnnConvolution", "NativeBatchNorm", "NativeGroupNorm")
DEAD_SHARE, FEWEST_UNITS = 0.6, 8
FEWEST_BATCHES, FEWEST_ELEMENTS = 3, 64
DIFFERENCE = 0.3  # of results in eval() from those in train(), in their standard deviations
SETTLED = 20  # batches after which running statistics say something
MOST_MODELS, LAST = 4, 6  # that are kept to the end of the script, with so many batches each
POINTS, STEP, TOLERANCE = 12, 1e-4, 1e-2  # finite differences


@dataclass
class _Units:
    last: torch.Tensor  # batch in which each was last above 0
    layer: r.Param | None
    at: Frame
    batches: int = 0
    elements: int = 0  # of one unit


class Dead(r.Check):
    """Units of a layer that a ReLU gives 0 for, in all batches since some early one."""

    kind = "dead"
    ops = ("relu", "relu_", "clamp_min", "clamp", "hardtanh", "hardtanh_")

    def enter(self) -> None:
        self.layers: dict[Any, _Units] = {}

    def op(self, name: str, args: list[Any], result: Any) -> None:
        node = args[0].grad_fn
        is_relu = len(args) == 1 or args[1] == 0
        if node is None or not is_relu or not node.name().startswith(_LAYERS) or result.dim() < 2:
            return
        is_second = result.dim() > 3 or node.name().startswith(_OF_CHANNELS)
        axis = 1 if is_second else result.dim() - 1
        units, at = result.shape[axis], r.here()
        if units < FEWEST_UNITS or at is None:
            return
        leaf = _nearest_leaf(node)
        layer = self.run.param(leaf) if leaf is not None else None
        unseen = _Units(torch.zeros(units), layer, at)
        one = self.layers.setdefault((id(leaf), at[:2], units), unseen)
        one.batches += 1
        one.elements += result.numel() // units
        alive = (result > 0).movedim(axis, 0).reshape(units, -1).any(1)
        one.last[alive.cpu()] = one.batches

    def end(self) -> None:
        for one in self.layers.values():
            enough = FEWEST_ELEMENTS * one.batches / max(one.elements, 1)
            dead = one.batches - one.last >= max(FEWEST_BATCHES, one.batches / 2, enough)
            count, units = int(dead.sum()), len(dead)
            if count >= DEAD_SHARE * units:
                layer = one.layer.name.rpartition(".")[0] if one.layer else ""
                since = one.batches - int(one.last[dead].max())
                text = f"{count} of {units} units{f' of {layer}' if layer else ''} are 0 for all"
                self.report(one.at, f"{text} elements of the last {since} of {one.batches} batches")


def _nearest_leaf(node: Any) -> torch.Tensor | None:
    """The parameter of the layer that a result is from."""
    level = [node]
    for _ in range(4):
        if leaves := [leaf for n in level if (leaf := getattr(n, "variable", None)) is not None]:
            return leaves[0]
        level = [n for one in level for n, _ in one.next_functions if n is not None]
    return None


class EvalDiffers(r.Check):
    """Batch norms whose running statistics are not those of the batches: a copy of the model runs
    again on its last batches, in eval() with and without them. Dropout is off in both.
    """

    kind = "eval-differs"

    def enter(self) -> None:
        self.models: OrderedDict[int, Any] = OrderedDict()  # module, batches, calls, in eval()
        self.turned: dict[int, Frame | None] = {}  # where eval() was called, by module
        self.run.after(nn.Module, "eval", self._turned)

    def _turned(self, _: Any, module: nn.Module) -> None:
        self.turned[id(module)] = r.here()

    def called(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if any(_has_statistics(m) for m in module.modules()):
            one = self.models.setdefault(id(module), [module, deque(maxlen=LAST), 0, 0])
            one[1].append(pytree.tree_map_only(torch.Tensor, torch.detach, (args, kwargs)))
            one[2] += 1
            one[3] += not module.training
            if len(self.models) > MOST_MODELS:
                self.models.popitem(last=False)

    def end(self) -> None:
        optimised = {id(p.ref()) for p in self.run.every if p.optimised}
        for module, batches, calls, in_eval in self.models.values():
            if calls >= SETTLED and any(id(p) in optimised for p in module.parameters()):
                with r.unnoticed(), torch.no_grad():
                    path, text = _compared(copy.deepcopy(module), copy.deepcopy(batches))
                norm = module.get_submodule(path)
                found = (self.run.lines.get((id(norm), n)) for n in ("weight", "running_mean"))
                at = next((line for line in found if line), None)
                if in_eval * 2 > calls:
                    text += f"; it was in eval() in {in_eval} of {calls} calls"
                    at = self.turned.get(id(module)) or at
                self.report(at if path else None, text)


def _has_statistics(module: Any) -> bool:
    return getattr(module, "running_mean", None) is not None and hasattr(module, "momentum")


def _compared(one: nn.Module, batches: Any) -> tuple[str, str]:
    """The norm that is furthest off, and in words how the results differ; "" where they are near.
    Those that the script has frozen stay as they are.
    """
    for m in one.modules():
        m._forward_hooks.clear()
        m._forward_pre_hooks.clear()
    is_in_eval = not one.training
    norms = {p: m for p, m in one.named_modules()
             if _has_statistics(m) and (m.training or is_in_eval)}  # fmt: skip
    args, kwargs = copy.deepcopy(batches[-1])
    before = _floats(one.eval()(*args, **kwargs))
    running = {p: (m.running_mean.clone(), m.running_var.clone()) for p, m in norms.items()}  # pyright: ignore
    seen: dict[str, list[torch.Tensor]] = {p: [] for p in norms}
    for path, m in norms.items():
        m.train().register_forward_pre_hook(lambda _, x, path=path: seen[path].append(x[0]))
    for args, kwargs in batches:
        after = _floats(one(*args, **kwargs))
    off = {p: _off(m, *running[p], seen[p]) for p, m in norms.items() if seen[p]}
    path = max(off, key=lambda p: off[p][0], default="")
    difference = max(map(_difference, before, after), default=0.0)
    if not path or not off[path][0] or difference < DIFFERENCE:
        return "", ""
    text = f"results in eval() are {difference:.2g} of their standard deviation from those in"
    text += f" train(): running mean and variance of {path} are"
    for t, join in zip(
        (*running[path], *off[path][1:]), (" and ", ", of batches ", " and ", ""), strict=True
    ):
        text += f"{'' if text[-1] == ' ' else ' '}{float(t.mean()):.3g}{join}"
    return path, f"{text} (means of channels); momentum is {norms[path].momentum}"


def _off(norm: Any, mean: Any, var: Any, inputs: list[torch.Tensor]) -> tuple[float, Any, Any]:
    """The distance of running statistics from those of batches beyond what chance does, 0 for near;
    those of the batches.
    """
    moments = [torch.var_mean(x.transpose(0, 1).flatten(1), 1, correction=0) for x in inputs]
    var_now, mean_now = (torch.stack(m).mean(0) for m in zip(*moments, strict=True))
    n = sum(x.numel() for x in inputs) / len(mean)
    shift = float(((mean - mean_now).abs() / (var_now + norm.eps).sqrt()).median())
    ratio = float(((var + norm.eps) / (var_now + norm.eps)).log().median().abs())
    is_off = shift > 0.5 + 3 / math.sqrt(n) or ratio > math.log(2) + 3 * math.sqrt(2 / n)
    is_off |= norm.momentum == 0 and (shift > 0.1 or ratio > 0.1)
    is_off |= all(len(x) == 1 for x in inputs)  # the statistics are of one sample each
    return (shift + ratio if is_off else 0.0), mean_now, var_now


def _floats(results: Any) -> list[torch.Tensor]:
    found = [t for t in pytree.tree_leaves(results) if isinstance(t, torch.Tensor)]
    return [t for t in found if t.is_floating_point()]


def _difference(a: torch.Tensor, b: torch.Tensor) -> float:
    if a.shape != b.shape or not a.numel():
        return 0.0
    spread = float(b.std() if b.numel() > 1 else b.abs())
    return float((a - b).square().mean().sqrt()) / spread if spread else 0.0


class FunctionGradient(r.Check):
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
        tried = self.tried.get(function, 0)
        if code is None or tried > 1 or not is_own(code.co_filename) or kwargs:
            return
        if any(isinstance(a, torch.Tensor) and a.requires_grad and a.numel() for a in args):
            self.tried[function] = tried + 1
            self.run.ask("compare", function, args, code, to=[self])

    def compare(self, function: Any, args: Any, code: Any) -> None:
        try:
            with r.unnoticed():
                text = _wrong(function, args)
        except (RuntimeError, TypeError, ValueError, NotImplementedError):
            return  # it does not take f64
        last = max(line for *_, line in code.co_lines() if line)
        self.report(Frame(code.co_filename, last, code.co_name) if text else None, text)


def _wrong(function: Any, args: Any) -> str:
    """In words, "" where nothing is."""
    floats = [k for k, a in enumerate(args)
              if isinstance(a, torch.Tensor) and a.is_floating_point()]  # fmt: skip
    given = [a.detach().double().clone() if k in floats else a for k, a in enumerate(args)]
    wanted = [k for k in floats if args[k].requires_grad and args[k].numel()]
    for k in wanted:
        given[k].requires_grad_()

    def results() -> list[torch.Tensor]:
        torch.manual_seed(0)
        copies = [a.clone() if k in floats else a for k, a in enumerate(given)]
        return _floats(function.apply(*copies))

    def total() -> torch.Tensor:
        return torch.stack([(t * _weights(t)).sum() for t in results() if t.requires_grad]).sum()

    for t in results():
        if t.dtype != torch.float64 or any(torch.equal(t, given[k]) for k in wanted):
            return ""
    grads = torch.autograd.grad(total(), [given[k] for k in wanted], allow_unused=True)
    texts = []
    for k, grad in zip(wanted, grads, strict=True):
        if grad is None or not grad.any():
            continue
        pairs = _slopes(given[k].detach().view(-1), grad.reshape(-1), lambda: float(total()))
        if pairs and not any(slope for slope, _ in pairs):
            return ""
        wrong = [(s, g) for s, g in pairs if s and abs(s - g) > TOLERANCE * max(abs(s), abs(g))]
        if len(wrong) * 4 > len(pairs):
            text = f"backward gives {wrong[0][1] / wrong[0][0]:.3g} times the slope of the forward"
            text += f" for operand {k} (finite differences in f64),"
            texts.append(f"{text} at {len(wrong)} of {len(pairs)} elements")
    return "; ".join(texts)


def _slopes(x: torch.Tensor, grad: torch.Tensor, value: Any) -> list[tuple[float, float]]:
    """At some elements the slope by finite differences, where it is the same on both sides and for
    a smaller step, and that of the backward.
    """
    found, start = [], value()
    for at in torch.linspace(0, len(x) - 1, min(POINTS, len(x))).long().tolist():
        kept, sides = float(x[at]), []
        for step in (STEP, -STEP, STEP / 10, -STEP / 10):
            x[at] = kept + step * max(1.0, abs(kept))
            sides.append((value() - start) / (float(x[at]) - kept))
        x[at] = kept
        if max(sides) - min(sides) <= TOLERANCE * max(abs(s) for s in sides):
            found.append((sum(sides[2:]) / 2, float(grad[at])))
    return found


def _weights(t: torch.Tensor) -> torch.Tensor:
    """Small, so that a backward that clips gradients does not."""
    return 1e-3 * (1 + torch.arange(t.numel(), dtype=torch.float64).sin() / 2).view(t.shape)
