"""What users call. JAX is imported, and asked for its version, only then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from opstep.frontends import installed

if TYPE_CHECKING:
    from opstep.api.program import Program
    from opstep.frontends.jax.assembling import Imported

OLDEST = (0, 9)


def from_jax(
    function: Callable[..., Any], /, *args: Any,
    weights: str | int | Sequence[str | int] = (), **kwargs: Any,
) -> Program:  # fmt: skip
    """A program that computes what a function of JAX computes for such arguments.

    `function`: any that `jax.jit` takes, with `jax.grad`, `jax.vmap` and others applied or not;
    `args`, `kwargs`: examples of its arguments, in trees of any kind. Arrays and numbers among them
    become inputs; bools and other values are constants. A `jax.ShapeDtypeStruct` gives a type
    alone; its shape may have the symbols of `jax.export.symbolic_shape`. `weights`: names or places
    of arguments that are no inputs but named tensors, with their values.

    The program's graph `main` takes the leaves of the arguments in order and gives those of the
    results; functions under `jax.jit` or `jax.checkpoint` are graphs. Named tensors and inputs are
    called as Python reaches them: ``params.Dense_0.kernel``. What the function closes over is a
    named tensor, too. `program.example` has the example inputs. Raises `InputError` where JAX
    cannot trace the function, `ImportFailed` where primitives have no counterpart.
    """
    return imported(function, args, kwargs, weights).program


def imported(
    function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any],
    weights: str | int | Sequence[str | int] = (),
) -> Imported:  # fmt: skip
    """`from_jax`, with what arguments and results are called."""
    check_installed()
    from opstep.frontends.jax.assembling import program_of

    return program_of(function, args, kwargs, weights)


def check_installed() -> None:
    """Complains where JAX is missing or too old."""
    installed.check_installed("jax", "JAX", "functions of JAX need the package jax", OLDEST)
