"""Checks of what a layer does: units that are dead, and what shows when it runs again."""

from __future__ import annotations

import copy
import inspect
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.modules.dropout import _DropoutNd
from torch.utils import _pytree as pytree

from opstep.frontends.torch.eager.lint import recording as r
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
FEWEST_ROWS = 2  # of a batch, for statistics of it that say something
MOST_MODELS, LAST = 4, 6  # that are kept to the end of the script, with so many batches each
POINTS, STEP, TOLERANCE = 12, 1e-4, 1e-2  # finite differences


@dataclass
class _Units:
    last: torch.Tensor  # batch in which each was last above 0
    layer: r.Param
    at: Frame
    batches: int = 0
    elements: int = 0  # of one unit


class Dead(r.Check):
    """Units of a layer that a ReLU gives 0 for, in all batches since some early one. A parameter of
    the layer has one element or row for each.
    """

    kind = "dead"
    ops = ("relu", "relu_", "clamp_min", "clamp", "hardtanh", "hardtanh_")

    def enter(self) -> None:
        self.layers: dict[Any, _Units] = {}

    def op(self, name: str, args: list[Any]) -> None:
        x, low, at = args[0], args[1] if len(args) > 1 else 0, r.here()
        if isinstance(low, torch.Tensor) or low != 0 or x.dim() < 2 or at is None:
            return
        if (leaf := _leaf_of(x.grad_fn)) is None or not leaf.dim():
            return
        axis = 1 if x.shape[1] == leaf.shape[0] else x.dim() - 1
        units = x.shape[axis]
        if units < FEWEST_UNITS or units not in (leaf.shape[0], leaf.shape[-1]):
            return
        unseen = _Units(torch.zeros(units), self.run.param(leaf), at)
        one = self.layers.setdefault((id(leaf), at[:2], units), unseen)
        one.batches += 1
        one.elements += x.numel() // units
        alive = (x > 0).movedim(axis, 0).reshape(units, -1).any(1)
        one.last[alive.cpu()] = one.batches

    def end(self) -> None:
        for one in self.layers.values():
            enough = FEWEST_ELEMENTS * one.batches / max(one.elements, 1)
            dead = one.batches - one.last >= max(FEWEST_BATCHES, one.batches / 2, enough)
            count, units = int(dead.sum()), len(dead)
            if count >= DEAD_SHARE * units:
                layer = one.layer.name.rpartition(".")[0]
                since = one.batches - int(one.last[dead].max())
                text = f"{count} of {units} units{f' of {layer}' if layer else ''} are 0 for all"
                self.report(one.at, f"{text} elements of the last {since} of {one.batches} batches")


def _leaf_of(node: Any) -> torch.Tensor | None:
    """The nearest parameter that the result of a layer is from, also with a bias or a residual."""
    is_sum = node and node.name().startswith("Add") and all(n for n, _ in node.next_functions)
    level = [node] if is_sum or (node and node.name().startswith(_LAYERS)) else []
    for _ in range(4):
        if leaves := [leaf for n in level if (leaf := getattr(n, "variable", None)) is not None]:
            return leaves[0]
        level = [n for one in level for n, _ in one.next_functions if n is not None]
    return None


@dataclass
class _Model:
    """A module that is called. `steps`: of optimizers after its calls, `in_eval`: of those the ones
    whose call was in eval(). `norms`: in train() then. `loose`: line of the last call in train()
    without a graph, if none with one came after it.
    """

    module: nn.Module
    batches: deque[Any] = field(default_factory=lambda: deque(maxlen=LAST))
    now: tuple[bool, list[nn.Module]] | None = None  # since the last step: in train(), and norms
    norms: list[nn.Module] = field(default_factory=list)
    steps: int = 0
    in_eval: int = 0
    loose: Frame | None = None


class EvalDiffers(r.Check):
    """Batch norms whose running statistics are not those of the batches: a copy of the model runs
    again on its last batches, in eval() with and without them. Dropout is off in both. And a mode
    that was forgotten: a model is trained in eval(), or used in train() and never in eval().
    """

    kind = "eval-differs"

    def enter(self) -> None:
        self.models: OrderedDict[int, _Model] = OrderedDict()
        self.chosen: dict[int, Frame | None] = {}  # where eval() was called, by module
        self.run.after(nn.Module, "eval", self._turned)

    def _turned(self, _: Any, module: nn.Module) -> None:
        self.chosen[id(module)] = r.here()

    def called(self, module: nn.Module, args: Any, kwargs: Any, has_graph: bool) -> None:
        norms = [m for m in module.modules() if _has_statistics(m)]
        if not norms and not any(isinstance(m, _DropoutNd) and m.p for m in module.modules()):
            return
        one = self.models.setdefault(id(module), _Model(module))
        given = pytree.tree_map_only(torch.Tensor, torch.detach, (args, kwargs))
        if has_graph:
            one.batches.append(given)
            one.now, one.loose = (module.training, [m for m in norms if m.training]), None
        elif one.loose and _starts(given) == self.last:  # samples of a distribution
            self.chosen.setdefault(id(module), None)
        elif module.training and one.steps:
            one.loose = r.here()
        self.last = _starts(given)
        if len(self.models) > MOST_MODELS:
            self.models.popitem(last=False)

    def stepping(self, optimizer: Any, params: list[torch.Tensor]) -> None:
        for one in self.models.values():
            if one.now is not None:
                is_training, one.norms = one.now
                one.steps += 1
                one.in_eval += not is_training
                one.now = None

    def end(self) -> None:
        for one in self.models.values():
            params = list(one.module.parameters())
            if sum(self.run.param(p).optimised for p in params) * 2 > len(params):
                self._judge(one)

    def _judge(self, one: _Model) -> None:
        turned = self.chosen.get(id(one.module))
        if one.in_eval * 2 > one.steps and turned is not None:
            text = f"the model was in eval() in {one.in_eval} of {one.steps} steps of training:"
            self.report(turned, f"{text} no train() comes after this one")
        elif one.loose is not None and id(one.module) not in self.chosen:
            self.report(one.loose, "the model is used in train() here, and eval() is never called")
        elif one.steps >= SETTLED and one.norms:
            with r.unnoticed(), torch.no_grad():
                k, text = _compared(*copy.deepcopy((one.module, one.norms, one.batches)))
            norm = one.norms[k]
            found = (self.run.lines.get(t) for t in (getattr(norm, "weight", None), norm))
            self.report(next((line for line in found if line), None), text)


def _has_statistics(module: Any) -> bool:
    return getattr(module, "running_mean", None) is not None and hasattr(module, "momentum")


def _starts(given: Any) -> list[int]:
    return [t.data_ptr() for t in pytree.tree_leaves(given) if isinstance(t, torch.Tensor)]


def _compared(one: nn.Module, norms: list[Any], batches: Any) -> tuple[int, str]:
    """The norm that is furthest off, and in words how the results differ; "" where they are near.
    Statistics of all batches stand for those of each, but where that one has too few rows.
    """
    for m in one.modules():
        m._forward_hooks.clear()
        m._forward_pre_hooks.clear()

    def results() -> list[torch.Tensor]:
        """Each of all batches."""
        runs = [_floats(one(*args, **kwargs)) for args, kwargs in copy.deepcopy(batches)]
        return [torch.cat([t.flatten() for t in ts]) for ts in zip(*runs, strict=False)]

    one.eval()
    before = results()
    running = [(m.running_mean.clone(), m.running_var.clone(), m.momentum) for m in norms]
    for m in norms:
        m.train().reset_running_stats()
        m.momentum = None  # the mean of all batches
    after = results()
    rows = min(len(t) for t in pytree.tree_leaves(batches[-1]) if isinstance(t, torch.Tensor))
    if rows > FEWEST_ROWS:
        one.eval()
        after = results()
    off = [_off(m, *kept[:2]) for m, kept in zip(norms, running, strict=True)]
    k = off.index(max(off))
    difference = max(map(_difference, before, after), default=0.0)
    (mean, var, momentum), m = running[k], norms[k]
    text = f"results in eval() are {difference:.2g} of their standard deviation from those in"
    text += f" train(): running mean and variance are {mean.mean():.3g} and {var.mean():.3g}, of"
    text += f" batches {m.running_mean.mean():.3g} and {m.running_var.mean():.3g} (means of"
    text += f" channels); momentum is {momentum}, batches have {rows} rows"
    return k, text if difference > DIFFERENCE else ""


def _off(norm: Any, mean: torch.Tensor, var: torch.Tensor) -> float:
    """The distance of running statistics from those that a norm has now."""
    now = norm.running_var + norm.eps
    shift = (mean - norm.running_mean).abs() / now.sqrt()
    return float(shift.median() + ((var + norm.eps) / now).log().abs().median())


def _floats(results: Any) -> list[torch.Tensor]:
    found = [t for t in pytree.tree_leaves(results) if isinstance(t, torch.Tensor)]
    return [t for t in found if t.is_floating_point()]


def _difference(a: torch.Tensor, b: torch.Tensor) -> float:
    spread = float(b.std()) if b.numel() > 1 else 0.0
    return float((a - b).square().mean().sqrt()) / spread if spread else 0.0


class FunctionGradient(r.Check):
    """A custom `Function` whose backward is not the derivative of its forward: both run again in
    f64, next to finite differences at some elements. `torch.autograd.gradcheck` is not for this:
    it has no room for what is on purpose.

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
            try:
                with r.unnoticed():
                    text = _wrong(function, args)
            except (RuntimeError, TypeError, ValueError, NotImplementedError):
                return  # it does not take f64
            last = max(line for *_, line in code.co_lines() if line)
            self.report(Frame(code.co_filename, last, code.co_name), text)


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
        return [t for t in _floats(function.apply(*copies)) if t.requires_grad]

    def total() -> torch.Tensor:
        """With small weights, so that a backward that clips gradients does not."""
        found = results()
        return 1e-3 * torch.stack([(t * (0.5 + torch.rand_like(t))).sum() for t in found]).sum()

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
    """At some elements the slope by finite differences, where it is the same on both sides, and
    that of the backward.
    """
    found, start = [], value()
    for at in torch.linspace(0, len(x) - 1, min(POINTS, len(x))).long().tolist():
        kept, sides = float(x[at]), []
        for step in (STEP, -STEP):
            x[at] = kept + step * max(1.0, abs(kept))
            sides.append((value() - start) / (float(x[at]) - kept))
        x[at] = kept
        if abs(sides[0] - sides[1]) <= TOLERANCE * max(map(abs, sides)):
            found.append((sum(sides) / 2, float(grad[at])))
    return found
