"""An op in a graph beside its peer in PyTorch: results, and gradients through the transform."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

import opstep
from opstep.runtime.ir.graph import Module
from opstep.runtime.ir.parser import parse
from opstep.runtime.ir.types import dtype_of
from opstep.runtime.transforms.grad import grad


def type_text(array: np.ndarray) -> str:
    """``f32[2, 3]``"""
    return f"{dtype_of(array.dtype)}[{', '.join(map(str, array.shape))}]"


def program(statement: str, inputs: dict[str, np.ndarray], results: Sequence[str]) -> Module:
    """One graph, ``main``, of one statement; `results` are the types of what it gives."""
    names = statement.partition(" = ")[0]
    head = ", ".join(f"{k}: {type_text(v)}" for k, v in inputs.items())
    types = ", ".join(results)
    return parse(f"graph main({head}) -> {types} {{\n{statement}\nreturn {names}\n}}")


def compare(
    statement: str,
    peer: Callable,
    *,
    wrt: Sequence[str] | None = None,
    tol: float = 2e-6,
    **inputs: np.ndarray,
) -> None:
    """Runs `statement` on `inputs` and holds it against ``peer(**tensors)``; gradients by `wrt`.

    By default of every float input. `tol` is relative to the largest element.
    """
    import torch

    inputs = {k: np.asarray(v) for k, v in inputs.items()}
    if wrt is None:
        wrt = [k for k, v in inputs.items() if v.dtype.kind == "f"]
    tensors = {k: torch.from_numpy(v.copy()).requires_grad_(k in wrt) for k, v in inputs.items()}
    expected = peer(**tensors)
    expected = list(expected) if isinstance(expected, (tuple, list)) else [expected]
    arrays = [e.detach().numpy() for e in expected]
    module = program(statement, inputs, [type_text(a) for a in arrays])
    found = opstep.Program(module).run("main", inputs)
    for got, want in zip(found.values(), arrays, strict=True):
        close(got, want, tol, statement)
    if wrt:
        compare_gradients(module, statement, inputs, wrt, tensors, expected, tol)


def compare_gradients(module, statement, inputs, wrt, tensors, expected, tol) -> None:
    import torch

    made = grad(module, "main", wrt, seeded=True, name="gradient")
    rng = np.random.default_rng(1)
    floats = [e for e in expected if e.is_floating_point()]
    seeds = [rng.standard_normal(tuple(e.shape)) for e in floats]
    seeds = [np.asarray(s, e.detach().numpy().dtype) for s, e in zip(seeds, floats, strict=True)]
    given = inputs | {f"d_{k}": s for k, s in enumerate(seeds)}
    found = opstep.Program(Module((*module.items, *made))).run("gradient", given)
    pairs = [
        (e, torch.from_numpy(s)) for e, s in zip(floats, seeds, strict=True) if e.requires_grad
    ]
    wanted = torch.autograd.grad(
        [e for e, _ in pairs], [tensors[k] for k in wrt], [s for _, s in pairs]
    )
    for name, got, want in zip(wrt, list(found.values())[-len(wrt) :], wanted, strict=True):
        close(got, want.numpy(), 5 * tol, f"gradient by {name} of {statement}")


def close(got: np.ndarray, want: np.ndarray, tol: float, what: str) -> None:
    assert got.shape == want.shape, what
    assert got.dtype == want.dtype, what
    if want.dtype.kind != "f":
        np.testing.assert_array_equal(got, want, err_msg=what)
        return
    finite = np.abs(want[np.isfinite(want)])
    scale = max(float(finite.max(initial=0.0)), 1e-3)
    np.testing.assert_allclose(got, want, rtol=0, atol=tol * scale, err_msg=what)
