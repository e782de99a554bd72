"""Ranks on GPUs: which each of them takes, and when they meet there."""

from __future__ import annotations

from opstep.api.devices import canonical, kind_of
from opstep.api.program import Program
from opstep.distributed.place import Place
from opstep.runtime.ir.effects import reached_graphs
from opstep.runtime.ir.errors import DeviceError, InputError
from opstep.runtime.ir.mesh import Group
from opstep.runtime.ir.wording import Argument, Wording


def device_of(asked: str, place: Place) -> str:
    """The device of a rank whose command line asks for that one: of GPUs that of its number on its
    machine, or the only one that it may see. Raises `InputError`, `DeviceError`.
    """
    if not kind_of(asked).gpu:
        return asked
    name, _, number = canonical(asked).partition(":")
    if number:
        raise InputError(
            f"each rank takes the GPU of its number on its machine, not all of them {asked}",
            hint=Wording(Argument("device", name)),
        )
    from opstep.runtime.device.cuda.driver.driver import driver

    count = driver().cuDeviceGetCount()
    if place.local_ranks <= count:
        return f"{name}:{place.local_rank}" if place.local_rank else name
    if count == 1:  # a launcher may let each rank see its own; NCCL's door knows
        return name
    raise DeviceError(
        f"there are {count} GPUs here for {place.local_ranks} ranks, and NCCL wants one for each",
        hint=f"start {count} ranks on this machine, or run them on the CPU",
    )


def meet(program: Program, graph: str, device: str) -> None:
    """Ranks on GPUs connect all groups that a graph's collectives are over, in one order: later a
    rank would wait in one for others that are in another. Raises `DeviceError`.
    """
    if not kind_of(device).gpu or program.mesh.ranks == 1:
        return
    from opstep.runtime.device.cuda.vendor.nccl import communicator_of

    groups: dict[Group, None] = {}
    for name in reached_graphs([graph], program.verified):
        for application in program.verified.graphs[name].applications:
            if application and application.op and application.op.is_shared(application.attrs):
                groups[application.attrs["over"]] = None
    program.on(device).enter()
    for group in groups:
        communicator_of(group)
