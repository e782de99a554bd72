"""Tensors that go from rank to rank: gathered, exchanged, from one to all, from one to another."""

from __future__ import annotations

import numpy as np

from opstep.kernels.collective import gpus
from opstep.kernels.collective.base import Collective, joined_dim, parts_along, split_dim
from opstep.kernels.rules.axes import axis_of
from opstep.runtime.device.ranks import Ranks
from opstep.runtime.ir.mesh import Group
from opstep.runtime.ir.op import Mismatch, Traits


def _check_member(number: int, over: Group, attr: str) -> None:
    if over.size > 1 and not 0 <= number < over.size:  # who is alone is every rank
        hint = f"they are 0 to {over.size - 1}, counted in the group"
        raise Mismatch(f"{attr}={number} is none of {over}", attr, hint)


class all_gather(Collective):
    """The tensors of all ranks of a group, joined along `axis` in their order."""

    signature = "all_gather(x: T, *, axis: int = 0, over: axes = none)"
    source = "torch.distributed.all_gather_into_tensor"
    traits = Traits(moves=True, collective=True)

    def infer(x, *, axis, over):
        return joined_dim(x, axis, over)

    def together(xs, *, axis, over):
        return [np.concatenate(xs, axis)] * len(xs)

    def joined(ranks: Ranks, x, y, *, axis, over):
        np.concatenate(ranks.gather(x), axis, out=y)

    joined_on_gpus = gpus.gathered

    def grad(g, operands, results, grads, *, axis, over):
        return (g.reduce_scatter(grads[0], axis=axis, over=over),)


class all_to_all(Collective):
    """Splits x along `split`, gives each rank of a group a part, and joins what it gets along
    `concat`: in a group of four, rank 1 has the second parts of all.
    """

    signature = "all_to_all(x: T, *, split: int = 0, concat: int = 0, over: axes = none)"
    source = "torch.distributed.all_to_all_single"
    traits = Traits(moves=True, collective=True)

    def infer(x, *, split, concat, over):
        axis_of(concat, x.rank, "concat")
        axis_of(split, x.rank, "split")
        return joined_dim(split_dim(x, split, over), concat, over)

    @staticmethod
    def together(xs, *, split, concat, over):
        parts = [parts_along(x, split, len(xs)) for x in xs]
        return [np.concatenate([p[k] for p in parts], concat) for k in range(len(xs))]

    def joined(ranks: Ranks, x, y, *, split, concat, over):
        np.concatenate(ranks.exchange(parts_along(x, split, ranks.size)), concat, out=y)

    joined_on_gpus = gpus.exchanged

    def grad(g, operands, results, grads, *, split, concat, over):
        return (g.all_to_all(grads[0], split=concat, concat=split, over=over),)


class broadcast_from(Collective):
    """The x of one rank of a group, `root`: each of them gets it."""

    signature = "broadcast_from(x: T, *, root: int = 0, over: axes = none)"
    source = "torch.distributed.broadcast"
    traits = Traits(moves=True, collective=True)

    def infer(x, *, root, over):
        _check_member(root, over, "root")
        return x

    def together(xs, *, root, over):
        return [xs[root % len(xs)]] * len(xs)

    def joined(ranks: Ranks, x, y, *, root, over):
        y[...] = ranks.broadcast(x, root)

    joined_on_gpus = gpus.broadcast

    def grad(g, operands, results, grads, *, root, over):
        total = g.all_reduce(grads[0], over=over)
        here = g.equal(g.rank(over=over), root % over.size)
        return (g.where(here, total, 0.0),)


class barrier(Collective):
    """x, once all ranks of a group are here."""

    signature = "barrier(x: T, *, over: axes = none)"
    source = "torch.distributed.barrier"
    traits = Traits(moves=True, collective=True)

    def infer(x, *, over):
        return x

    def joined(ranks: Ranks, x, y, *, over):
        ranks.barrier()
        y[...] = x

    joined_on_gpus = gpus.met

    def grad(g, operands, results, grads, *, over):
        return (grads[0],)


class send(Collective):
    """x, which goes to the rank `to` of the group, too: it takes it with `recv`.

    Ranks that send stand in a branch of their own: `cond` on `rank`.
    """

    signature = "send(x: T, *, to: int, over: axes = none)"
    source = "torch.distributed.send"
    traits = Traits(moves=True, collective=True)
    grad = None

    def infer(x, *, to, over):
        _check_member(to, over, "to")
        return x

    def joined(ranks: Ranks, x, y, *, to, over):
        ranks.send(x, to)
        y[...] = x

    joined_on_gpus = gpus.sent


class recv(Collective):
    """The tensor that the rank `source` of the group sends, with the type of x. Of x nothing else
    is used, but in a group of one rank, where it is the result.
    """

    signature = "recv(x: T, *, source: int, over: axes = none)"
    source = "torch.distributed.recv"
    traits = Traits(moves=True, collective=True)
    grad = None

    def infer(x, *, source, over):
        _check_member(source, over, "source")
        return x

    def joined(ranks: Ranks, x, y, *, source, over):
        y[...] = ranks.recv(y, source)

    joined_on_gpus = gpus.received
