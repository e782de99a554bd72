"""``opstep train`` on several ranks: who has which rows, what they compare, when they end."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from opstep.api.devices import kind_of
from opstep.api.inputs import conform
from opstep.api.program import Program
from opstep.api.ranks import Part as Run
from opstep.api.ranks import check_alike
from opstep.distributed.agreement import agree, told
from opstep.distributed.gpus import meet
from opstep.optim.parallel import data_axis
from opstep.training.data import Part

if TYPE_CHECKING:
    from opstep.distributed.gloo import GlooTransport
    from opstep.training.loop import Trainer


def part_of(program: Program, transport: GlooTransport | None, axis: str | None) -> Part:
    """What this rank has of each batch: ranks along an axis of the mesh share it."""
    if transport is None:
        return Part()
    group = data_axis(program.mesh, axis or True)
    return Part(group.index(transport.rank), group.size)


def join(trainer: Trainer, transport: GlooTransport, axis: str | None) -> None:
    """Makes a trainer one of several, which all call this. Raises `OpstepError` where they are to
    do different things, or their params would part.
    """
    world, batches, program = transport.world, trainer.batches, trainer.program
    device = trainer.settings.device
    graph, over = program.graph(trainer.graph), data_axis(program.mesh, axis or True)
    rows = batches.dataset.rows(np.arange(batches.size // batches.part.count))
    _, types = conform(graph, rows, program.module.source)
    how = (
        replace(trainer.settings, threads=None, device=kind_of(device).name),
        trainer.step,
        trainer.position,
        len(batches.dataset),
    )
    agree(world, program, trainer.graph, types, str(how))
    meet(program, trainer.graph, device)
    if batches.part.count > 1:
        check_alike(Run(program, trainer.graph, types), over.axes)

    def any_is(stopped: bool) -> bool:
        return any(flag[0] for flag in world.gather(np.array([stopped])))

    def shared(values: list[Any]) -> list[list[Any]]:
        return told(world, values)

    trainer.ask_others = any_is
    if trainer.validation is not None:
        trainer.validation.share(Part(world.index, world.size), shared)
