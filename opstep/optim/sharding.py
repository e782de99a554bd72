"""Optimizers whose states ranks share out: each updates its part of every param, and all gather the
new ones. The first stage of ZeRO (Rajbhandari et al. 2020, arXiv:1910.02054).

A state has the shape of its param, and is declared as shards of that along the first axis that all
ranks have an equal part of: so a checkpoint does not depend on the number of ranks. What has no
such axis stays whole.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from math import inf, prod
from typing import NamedTuple, Protocol, TypeVar

from opstep.optim.optimizers import Optimizer
from opstep.optim.writing import Body, lines, statements, type_of
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.graph import Apply, Declaration, Name, Sharding
from opstep.runtime.ir.mesh import Group
from opstep.runtime.ir.op import OPS
from opstep.runtime.ir.shards import Shard
from opstep.runtime.ir.types import DType, TensorType
from opstep.runtime.ir.values import MOST_DIMS


def is_elementwise(optimizer: Optimizer) -> bool:
    """Whether a part of a param is updated as it is in the whole."""
    t = type_of("f32[A, B]")
    body = statements(lines(optimizer.update(t, True)))
    ops = [OPS.get(s.callee.text) for s in body if isinstance(s, Apply)]
    same = all(state == t for state in optimizer.states(t).values())
    return same and all(op is not None and op.element is not None for op in ops)


def check_elementwise(optimizer: Optimizer, why: str) -> None:
    """Complains of an optimizer that cannot update params in parts. Raises `InputError`."""
    if not is_elementwise(optimizer):
        raise InputError(
            f"{why}: {optimizer.name} updates a param by all of its elements, not one by one",
            hint="sgd, rmsprop, adam, adamw and lion update parts of params",
        )


def shared_out(
    trained: Sequence[Declaration], apart: Collection[str], over: Group
) -> dict[str, Shard]:
    """How params are shared out to a group, by name; but for those that are `apart` already."""
    found = {}
    for d in trained:
        dims = [k for k, n in enumerate(d.type.shape) if n and not n % over.size]
        if dims and d.name.text not in apart:
            found[d.name.text] = Shard(d.type, dims[0], over)
    return found


def declared_as(shard: Shard) -> Sharding:
    """What a declaration says of it."""
    return Sharding(tuple(map(Name, shard.group.axes)), shard.axis)


def over(group: Group) -> str:
    """The attribute of a collective, behind others."""
    return "" if group.name == "none" else f", over={group.name}"


# --- parts as rows of a matrix --------------------------------------------------------------------


class Part(NamedTuple):
    """The name of a tensor, or of this rank's part of it; what its names begin with."""

    value: str
    stem: str
    shard: Shard

    @property
    def blocks(self) -> tuple[int, int, int]:
        """The whole as ``[before, ranks, rest]``: each rank has one of the middle."""
        shape: tuple[int, ...] = self.shard.whole.shape  # pyright: ignore[reportAssignmentType]
        before, ranks = prod(shape[: self.shard.axis]), self.shard.group.size
        return before, ranks, prod(shape[self.shard.axis :]) // ranks

    @property
    def size(self) -> int:
        """Elements of a part."""
        before, _, rest = self.blocks
        return before * rest

    @property
    def dtype(self) -> DType:
        return self.shard.whole.dtype

    @property
    def nbytes(self) -> int:
        """Of the whole."""
        return self.size * self.shard.group.size * self.dtype.itemsize


def _reshaped(body: Body, stem: str, x: str, *dims: int) -> str:
    return body.value(stem, f"reshape({x}, shape=[{', '.join(map(str, dims))}])")


def _dims(t: TensorType) -> tuple[int, ...]:
    return t.shape  # pyright: ignore[reportReturnType]


def _joined(body: Body, rows: Sequence[str]) -> str:
    return body.value("bucket", f"concat({', '.join(rows)}, axis=1)")


def _parts(body: Body, bucket: str, parts: Sequence[Part]) -> list[str]:
    """The columns of a bucket, of each part its own."""
    names = [body.name(f"part_{p.stem}") for p in parts]
    sizes = ", ".join(str(p.size) for p in parts)
    body.line(f"{', '.join(names)} = split({bucket}, sizes=[{sizes}], axis=1)")
    return names


def _turned(body: Body, p: Part, x: str, *dims: int) -> str:
    split = _reshaped(body, f"split_{p.stem}", x, *dims)
    return body.value(f"turned_{p.stem}", f"transpose({split}, perm=[1, 0, 2])")


def scattered(
    body: Body, later: Body, wholes: Sequence[Part], how: str, others: str = ""
) -> list[str]:
    """This rank's parts of the means of what ranks have, all at once; `later`: where the parts are
    taken from each other. `others`: how those of the same part find the mean of theirs.
    """

    def mean(part: str) -> str:
        return body.value("mean", f"all_reduce({part}{others})") if others else part

    if len(wholes) == 1:
        (p,) = wholes
        scatter = f"reduce_scatter({p.value}, axis={p.shard.axis}{how})"
        return [mean(body.value(f"own_{p.stem}", scatter))]
    rows = []
    for p in wholes:
        before, ranks, rest = p.blocks
        x = _turned(body, p, p.value, before, ranks, rest) if before > 1 else p.value
        rows.append(_reshaped(body, f"flat_{p.stem}", x, ranks, p.size))
    bucket = mean(body.value("own_bucket", f"reduce_scatter({_joined(body, rows)}, axis=0{how})"))
    found = zip(wholes, _parts(later, bucket, wholes), strict=True)
    return [_reshaped(later, f"own_{p.stem}", x, *_dims(p.shard.type)) for p, x in found]


def own_part(body: Body, p: Part, rank: str) -> str:
    """This rank's part of a tensor that all have."""
    blocks = _reshaped(body, f"parts_{p.stem}", p.value, *p.blocks)
    mine = body.value(f"part_{p.stem}", f"gather({blocks}, {rank}, axis=1)")
    return _reshaped(body, f"own_{p.stem}", mine, *_dims(p.shard.type))


def gathered(body: Body, parts: Sequence[Part]) -> list[str]:
    """The tensors that ranks have these parts of, all at once."""
    how = over(parts[0].shard.group)
    if len(parts) == 1:
        (p,) = parts
        return [body.value(f"all_{p.stem}", f"all_gather({p.value}, axis={p.shard.axis}{how})")]
    rows = [_reshaped(body, f"flat_{p.stem}", p.value, 1, p.size) for p in parts]
    every = body.value("all_bucket", f"all_gather({_joined(body, rows)}, axis=0{how})")
    wholes = []
    for p, x in zip(parts, _parts(body, every, parts), strict=True):
        before, ranks, rest = p.blocks
        if before > 1:
            x = _turned(body, p, x, ranks, before, rest)
        wholes.append(_reshaped(body, f"all_{p.stem}", x, *_dims(p.shard.whole)))
    return wholes


class Bucketed(Protocol):
    """What a bucket is filled with."""

    @property
    def dtype(self) -> DType: ...

    @property
    def nbytes(self) -> int: ...


B = TypeVar("B", bound=Bucketed)


def buckets(tensors: Sequence[B], limit: int, first: int, alone: float = inf) -> Iterator[list[B]]:
    """Tensors of one element type that go together, until they have so many bytes (`first`: in the
    first bucket of a type), or are as many as a list of dims may have. One of `alone` bytes, or
    more, has a bucket of its own.
    """
    for dtype in dict.fromkeys(t.dtype for t in tensors):
        bucket: list[B] = []
        held, most = 0, min(first, limit)
        for tensor in (t for t in tensors if t.dtype is dtype):
            if tensor.nbytes >= alone:
                yield [tensor]
                continue
            bucket.append(tensor)
            held += tensor.nbytes
            if held >= most or len(bucket) == MOST_DIMS:  # more are no list of `split`'s sizes
                yield bucket
                bucket, held, most = [], 0, limit
        if bucket:
            yield bucket
