"""Devices by name: ``cpu``, ``cuda`` (the first GPU), ``cuda:1``, ``null``."""

from __future__ import annotations

import re
from typing import Any

from opstep.runtime.ir.errors import InputError

_GPU = re.compile(r"cuda(?::(\d{1,4}))?$")


def canonical(name: str) -> str:
    """A device's name as it is written everywhere: the first GPU is ``cuda``.

    Raises `InputError`.
    """
    found = _GPU.match(name)
    if found:
        ordinal = int(found[1] or 0)
        return f"cuda:{ordinal}" if ordinal else "cuda"
    if name not in ("cpu", "null"):
        raise InputError(f"there is no device {name}", hint="there are: cpu, cuda, cuda:1, null")
    return name


def device_named(name: str, lanes: int | None = None) -> Any:
    """The device of that name; `lanes` are threads that share a kernel's range, on the CPU.

    Raises `InputError` for a name that says nothing, `DeviceError` where the machine has no such
    device.
    """
    name = canonical(name)
    if name == "null":
        from opstep.runtime.device.null import NullDevice

        return NullDevice()
    if name == "cpu":
        from opstep.runtime.device.cpu import CpuDevice

        return CpuDevice(lanes)
    from opstep.runtime.device.cuda.device import device

    return device(int(name.partition(":")[2] or 0))
