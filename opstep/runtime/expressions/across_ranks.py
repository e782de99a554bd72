"""Functions of what several ranks have: stacked, put together, compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from opstep.runtime.expressions.errors import ExpressionError
from opstep.runtime.expressions.registry import Deferred, Integer, String, function
from opstep.runtime.expressions.values import Evaluation, elements, type_of

RANKS = "ranks"


def _each(env: Evaluation, x: Any, axes: Sequence[str]) -> Iterator[np.ndarray]:
    members: Sequence[int] = env.scope.ranks(axes)
    first = None
    for rank in members:
        found = env.within(env.scope.on_rank(rank), x)
        t = type_of(found)
        first = first or t
        if t.dtype is not first.dtype or t.rank != first.rank:
            raise ExpressionError(f"it is {first} on rank {members[0]}, and {t} on rank {rank}")
        nbytes: Any = t.nbytes
        env.charge(nbytes)
        yield np.asarray(elements(env, found))


def _axes(over: str | None) -> Sequence[str]:
    return over.replace(",", " ").split() if over else ()


@function(RANKS)
def ranks(env: Evaluation, x: Deferred, over: String | None = None) -> Any:
    """x of all ranks, along a new first axis: max(ranks(loss)). ranks(x, over="data"): of this
    rank's group along an axis of the mesh. x@2 is that of rank 2.
    """
    found = list(_each(env, x, _axes(over)))
    if len({a.shape for a in found}) > 1:
        raise ExpressionError("ranks have different shapes", hint="joined(x) puts shards together")
    return np.stack(found)


@function(RANKS)
def joined(
    env: Evaluation, x: Deferred, axis: Integer | None = None, over: String | None = None
) -> Any:
    """The shards that ranks have of x, put together along an axis in the order of the ranks, of
    this rank's group along `over`: joined(h, axis=1, over="model"). A param that is declared as
    shards needs none of this: w is the whole.
    """
    shard = env.scope.shard(x.name) if axis is None and over is None else None
    along: int = shard.axis if shard else axis or 0  # pyright: ignore[reportAssignmentType]
    found = list(_each(env, x, shard.group.axes if shard else _axes(over)))
    if not -found[0].ndim <= along < found[0].ndim:
        raise ExpressionError(f"x has no axis {along}", hint="ranks(x) stacks what ranks have")
    return np.concatenate(found, along)


@function(RANKS)
def shard(env: Evaluation, x: Deferred) -> Any:
    """x of what this rank has: of a param that is declared as shards, of which w is the whole, its
    own part. w@2 is that of rank 2.
    """
    return env.within(env.scope.own(), x)


@function(RANKS)
def replicated(env: Evaluation, x: Deferred, over: String | None = None) -> Any:
    """Whether all ranks have the same bits of x; with `over`, those of this rank's group. Of a
    param that is declared as shards those are asked that have the same part.
    """
    axes, shard = _axes(over), env.scope.shard(x.name)
    if shard is not None:
        axes = [a for a in axes or shard.group.mesh.names if a not in shard.group.axes]
        if not axes:
            hint = f"{x.name} is the whole"
            raise ExpressionError(f"each rank has a part of its own of {x.name}", hint=hint)
    parts = _each(env, x, axes)
    first = next(parts)
    kept = first.shape, first.tobytes()
    return all((part.shape, part.tobytes()) == kept for part in parts)
