"""Runs a function of PyTorch and its program on operands with extreme numbers, and says where NaNs
and infinities stand in one's results and gradients and not in the other's.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from agreement import array
from torch.utils import _pytree as pytree

import opstep
from opstep.frontends.torch.importing import from_torch
from opstep.runtime.ir.graph import Module
from opstep.runtime.transforms.grad import GradientError, grad

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))

SPECIAL, TINY, PLAIN, LARGE, MIXED = "special", "tiny", "plain", "large", "mixed"
GROUPS = {
    SPECIAL: (0.0, float("inf"), float("nan")),
    TINY: (1e-45, 1e-38, 1e-20),
    PLAIN: (1e-5, 1.0, 3.0, 1e5),
    LARGE: (1e19, 3e19, 1e25, 3e25, 1e38, 3e38),
}
OF_F16 = {  # whose exponents end sooner
    SPECIAL: GROUPS[SPECIAL], TINY: (6e-8, 6e-5), PLAIN: (1e-3, 1.0, 3.0, 100.0),
    LARGE: (256.0, 3e3, 3e4, 6.5e4),
}  # fmt: skip
LOST, EXTRA, OTHER, REFUSED = "lost", "extra", "other", "refused"
SIZES = (4, 5, 6, 8, 9, 12, 16, 24, 32, 48, 64, 96, 100, 128, 192)
OF_FORM = {  # offsets that are more than sizes, and numbers of groups
    "embedding_bag_sum": ("f 4 4", "i4 40", "n 2"), "conv2d_groups32": ("f 1 64 4 4", "f 64 2 3 3"),
    "conv1d_dilated_dw": ("f 1 256 4", "f 256 1 3"),
    "conv3d_groups": ("f 1 8 3 3 3", "f 4 2 3 3 3"),
}  # fmt: skip


class Difference(NamedTuple):
    """A group of operands, for which elements of a result are not finite on one side only (`what`:
    lost, or extra, by ours), or not in the same way; or which ours refuses. `result`: "y", or "d"
    for a gradient.
    """

    group: str
    result: str
    what: str


# --- operands -------------------------------------------------------------------------------------


def variants(tensors: list[torch.Tensor]) -> Iterator[tuple[str, float, list[torch.Tensor]]]:
    """(group, number, operands): one element of each row of a float operand, or of all of them, is
    that number, of either sign; all elements are as many times as large; many are any numbers.
    """
    floats = [k for k, t in enumerate(tensors) if t.is_floating_point() and t.numel()]
    groups = OF_F16 if tensors[floats[0]].dtype is torch.float16 else GROUPS
    every = [n for numbers in groups.values() for n in numbers]
    for chosen in dict.fromkeys([*((k,) for k in floats), tuple(floats)]):
        rng = np.random.default_rng(zlib.crc32(repr(chosen).encode()))

        def changed(change, n, chosen=chosen, rng=rng):
            return [change(t, n, rng) if k in chosen else t for k, t in enumerate(tensors)]

        for group, numbers in groups.items():
            for number in numbers:
                yield group, number, changed(_in_rows, number)
                if group in (TINY, LARGE):
                    yield group, number, changed(_times, number)
        for numbers in (every, [n for n in every if np.isfinite(n)]):
            yield MIXED, 0.0, changed(_anywhere, numbers)


def _times(t: torch.Tensor, number: float, rng: np.random.Generator) -> torch.Tensor:
    return (t.double() * number).to(t)


def _in_rows(t: torch.Tensor, number: float, rng: np.random.Generator) -> torch.Tensor:
    rows = t.reshape(-1, t.shape[-1] if t.dim() else 1).clone()
    at = rng.integers(rows.shape[1], size=len(rows))
    signs = rng.choice((1.0, -1.0), len(rows))
    rows[torch.arange(len(rows)), torch.from_numpy(at)] = torch.from_numpy(signs * number).to(t)
    return rows.reshape(t.shape)


def _anywhere(t: torch.Tensor, numbers: list[float], rng: np.random.Generator) -> torch.Tensor:
    shape = tuple(t.shape)
    drawn = np.asarray(rng.choice(numbers, shape) * rng.choice((1.0, -1.0), shape))
    taken = torch.from_numpy(np.asarray(rng.random(shape) < 0.4))
    return torch.where(taken, torch.from_numpy(drawn).to(t), t)


# --- runs -----------------------------------------------------------------------------------------


class Refused(Exception):
    """PyTorch has no kernel for operands like these."""


def differences(function: Callable, tensors: list[torch.Tensor]) -> dict[Difference, str]:
    """Those of all variants, each with a description of one element. Raises `Refused` where PyTorch
    takes none.
    """
    ours, found, runs = Ours(function, tensors, _has_gradients(function, tensors)), {}, 0
    for group, number, given in variants(tensors):
        try:
            results, gradients = eager(function, given, ours.differentiable)
        except RuntimeError:  # operands that PyTorch refuses
            continue
        runs += 1
        try:
            values = ours(given, results)
        except opstep.OpstepError as error:
            found.setdefault(Difference(group, "y", REFUSED), str(error))
            continue
        names = "y" * len(results) + "d" * len(gradients)
        for name, wanted, value in zip(names, [*results, *gradients], values, strict=True):
            if wanted is None or not wanted.is_floating_point():
                continue
            for what, at in compared(wanted, value):
                shown = f"{number:g} gave {wanted[at].item():g}, ours {value[at]:g}"
                found.setdefault(Difference(group, name, what), shown)
    if not runs:
        raise Refused
    return found


def differences_of(name: str, dtype: torch.dtype) -> dict[Difference, str] | None:
    """Those of a form ("form NAME") or of an op of PyTorch's samples ("NAME/VARIANT"); None if
    there is no sample of floats.
    """
    found = form(name[5:], dtype) if name.startswith("form ") else sample(name, dtype)
    return None if found is None else differences(*found)


def compared(theirs: torch.Tensor, ours: np.ndarray) -> Iterator[tuple[str, tuple]]:
    """What differs, with the place of the first element that does."""
    a, b = theirs.double().numpy(), np.asarray(ours).astype(np.float64)
    kinds = [np.where(np.isnan(v), 3, np.sign(v) * np.isinf(v)) for v in (a, b)]
    for what, where in (
        (LOST, ~np.isfinite(a) & np.isfinite(b)),
        (EXTRA, np.isfinite(a) & ~np.isfinite(b)),
        (OTHER, ~np.isfinite(a) & ~np.isfinite(b) & (kinds[0] != kinds[1])),
    ):
        if where.any():
            yield what, tuple(np.argwhere(where)[0])


def seeds(results: list[torch.Tensor]) -> list[torch.Tensor]:
    """Gradients to begin with, for each float result."""
    rng, floats = np.random.default_rng(5), [r for r in results if r.is_floating_point()]
    return [torch.from_numpy(np.asarray(rng.standard_normal(tuple(r.shape)))).to(r) for r in floats]


def eager(
    function: Callable, tensors: list[torch.Tensor], differentiable: bool
) -> tuple[list[torch.Tensor], list[torch.Tensor | None]]:
    """Results, and the gradients by float operands, where there are some."""
    given = [t.clone() for t in tensors]
    leaves, gradients = [t for t in given if t.is_floating_point()], []
    for t in leaves:
        t.requires_grad_(differentiable)
    results = _tensors(function(*given))
    floats = [r for r in results if r.is_floating_point()]
    parts = [(r, s) for r, s in zip(floats, seeds(results), strict=True) if r.requires_grad]
    if differentiable and parts:
        made, begun = zip(*parts, strict=True)
        gradients = torch.autograd.grad(made, leaves, begun, allow_unused=True)
    return [r.detach() for r in results], [*gradients, *[None] * (len(leaves) - len(gradients))]


def _has_gradients(function: Callable, tensors: list[torch.Tensor]) -> bool:
    """Whether PyTorch has those by all float operands."""
    try:
        eager(function, tensors, True)
    except RuntimeError:
        return False
    return True


def _tensors(found: Any) -> list[torch.Tensor]:
    return [t for t in pytree.tree_leaves(found) if isinstance(t, torch.Tensor)]


class Ours:
    """The program of a function, with its gradient, if that is wanted and all its ops have one."""

    def __init__(self, function: Callable, tensors: list[torch.Tensor], differentiable: bool):
        program = from_torch(_Model(function), tuple(t.clone() for t in tensors))
        self.names = [p.name.text for p in program.graph("main").inputs]
        self.by = [n for n, t in zip(self.names, tensors, strict=True) if t.is_floating_point()]
        self.program, self.graph = program, "main"
        if differentiable:
            with suppress(GradientError):
                made = grad(program.verified, "main", self.by, seeded=True, name="gradient")
                self.program = opstep.Program(Module((*program.module.items, *made)))
                self.graph = "gradient"

    @property
    def differentiable(self) -> bool:
        return self.graph == "gradient"

    def __call__(self, tensors: list[torch.Tensor], results: list[torch.Tensor]) -> list[Any]:
        given = dict(zip(self.names, map(array, tensors), strict=True))
        if self.differentiable:
            given |= {f"d_{k}": array(s) for k, s in enumerate(seeds(results))}
        found = list(self.program.run(self.graph, given).values())
        if self.differentiable:
            return found
        return [*found[: len(results)], *[None] * len(self.by)]  # others are inputs that changed


class _Model(torch.nn.Module):
    def __init__(self, function: Callable):
        super().__init__()
        self.function = function

    def forward(self, *tensors):
        return _tensors(self.function(*tensors))


# --- functions ------------------------------------------------------------------------------------


def form(name: str, dtype: torch.dtype) -> tuple[Callable, list[torch.Tensor]]:
    """A form of the sweep of single ops, with sizes as small as it takes them."""
    from op_forms import FORMS
    from op_sweep import made

    function, specs, _ = FORMS[name]
    specs = OF_FORM.get(name, specs)
    for size in sorted({n for spec in specs for n in _sizes(spec)}, reverse=True):
        smaller = (_resized(specs, size, n) for n in SIZES if n < size)
        taken = (s for s in smaller if _works(function, s))
        specs = next(taken, specs) if name not in OF_FORM else specs
    return function, [made(s, "cpu", dtype, k).detach() for k, s in enumerate(specs)]


def _sizes(spec: str) -> list[int]:
    kind, *sizes = spec.split()
    return [int(n) for n in (*sizes, *([kind[1:]] if kind[0] == "i" else []))]


def _resized(specs: tuple[str, ...], size: int, other: int) -> tuple[str, ...]:
    def changed(word: str) -> str:
        return {str(size): str(other), f"i{size}": f"i{other}"}.get(word, word)

    return tuple(" ".join(map(changed, spec.split())) for spec in specs)


def _works(function: Callable, specs: tuple[str, ...]) -> bool:
    kinds = {"i": torch.int64, "n": torch.int64, "b": torch.bool}
    given = [
        torch.empty(
            [int(n) for n in spec.split()[1:]], device="meta", dtype=kinds.get(spec[0], torch.float)
        )
        for spec in specs
    ]
    try:
        function(*given)
    except (RuntimeError, ValueError, IndexError):  # whatever checks of sizes raise
        return False
    return True


def sample(name: str, dtype: torch.dtype) -> tuple[Callable, list[torch.Tensor]] | None:
    """A sample with which PyTorch tests its own op; None if it has none of floats."""
    from torch.testing._internal.common_methods_invocations import op_db  # takes two seconds

    name, _, variant = name.partition("/")
    op = next(o for o in op_db if (o.name, o.variant_test_name) == (name, variant))
    if dtype not in op.supported_dtypes("cpu"):
        return None
    torch.manual_seed(0)
    for found in list(op.sample_inputs("cpu", dtype, requires_grad=False)):
        leaves, spec = pytree.tree_flatten(((found.input, *found.args), found.kwargs))
        places = [k for k, a in enumerate(leaves) if isinstance(a, torch.Tensor)]
        tensors = [leaves[k].detach().clone() for k in places]
        if found.kwargs.get("dropout_p") or not _is_fit(tensors):
            continue

        def function(*given, leaves=leaves, spec=spec, places=places):
            known = dict(zip(places, given, strict=True))
            args, kwargs = pytree.tree_unflatten(
                [known.get(k, a) for k, a in enumerate(leaves)], spec
            )
            return op.op(*args, **kwargs)

        return function, tensors
    return None


def _is_fit(tensors: list[torch.Tensor]) -> bool:
    few = all(0 < t.numel() <= 600 and not t.is_complex() for t in tensors)
    return few and any(t.is_floating_point() and t.numel() > 4 for t in tensors)
