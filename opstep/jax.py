"""``opstep.jax``: functions of JAX on opstep. JAX is imported when a function is decorated."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, overload

from opstep.frontends.scripts.watching import NumericsWarning
from opstep.frontends.scripts.watching import told as findings

if TYPE_CHECKING:
    from opstep.frontends.jax.debugging import Debugged

__all__ = ["NumericsWarning", "debug", "findings"]


@overload
def debug(function: Callable[..., Any], /) -> Debugged: ...
@overload
def debug(**options: Any) -> Callable[[Callable[..., Any]], Debugged]: ...
def debug(function: Any = None, /, **options: Any) -> Any:
    """Has calls of a function of JAX's run on opstep.

    @opstep.jax.debug
    @jax.jit
    def step(params, batch): ...

    It is traced by `jax.jit` as ever, for each set of shapes, element types and static arguments,
    and gives the same tree of JAX's arrays. Under ``opstep run``, ``hunt`` and ``debug`` their
    options hold. Else `options` do: ``hunt=True`` warns of the first NaN or infinity, with where it
    was born; ``workspace=FILE`` and ``trace=FILE`` record all runs of the process, ``listen=PORT``
    lets an editor attach; the others are those of `Program.run`: ``mode``, ``threads``, ….

    Raises `InputError` for options that do not exist, and, where the function is called,
    `ImportFailed` if it has what opstep has no counterpart for.
    """
    from opstep.frontends.jax.importing import check_installed

    check_installed()
    from opstep.frontends.jax.debugging import decorated

    if function is None:
        return lambda function: decorated(function, options)
    return decorated(function, options)
