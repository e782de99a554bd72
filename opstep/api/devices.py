"""Devices by name: ``cpu``, ``cuda`` (the first GPU), ``cuda:1``, ``null``."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from opstep.runtime.ir.errors import InputError

KERNELS = ("auto", "numba", "vendor")
_GPU = re.compile(r"cuda(?::(\d{1,4}))?$")


def canonical(name: str) -> str:
    """A device's name as it is written everywhere: the first GPU is ``cuda``.

    Raises `InputError`.
    """
    if name in ("cpu", "null"):
        return name
    if found := _GPU.match(name):
        ordinal = int(found[1] or 0)
        return f"cuda:{ordinal}" if ordinal else "cuda"
    raise InputError(f"there is no device {name}", hint="there are: cpu, cuda, cuda:1, null")


class Setup(NamedTuple):
    """How a device runs ops. `threads` share a kernel's range, on the CPU (None: all cores).
    `kernels` and `autotune` choose between an op's kernels on a GPU, see `cuda.choice.choice`.
    `chaos`: a seed for delays of its streams, see `device.chaos`; None: there are none.
    """

    threads: int | None = None
    kernels: str = "auto"
    autotune: bool = False
    chaos: int | None = None

    def on(self, device: str) -> Setup:
        """What of it matters to that device."""
        if device.startswith("cuda"):
            return self._replace(threads=None)
        return Setup(self.threads, chaos=self.chaos) if device == "cpu" else Setup()


def device_named(name: str, setup: Setup = Setup()) -> Any:
    """The device of that name.

    Raises `InputError` for a name that says nothing, `DeviceError` where the machine has no such
    device, or not the libraries that are asked for.
    """
    name = canonical(name)
    found = _device_named(name, setup)
    if setup.chaos is None or name == "null":
        return found
    from opstep.runtime.device.chaos import chaotic

    return chaotic(found, setup.chaos)


def _device_named(name: str, setup: Setup) -> Any:
    if name == "null":
        from opstep.runtime.device.null import NullDevice

        return NullDevice()
    if name == "cpu":
        from opstep.runtime.device.cpu.device import CpuDevice

        return CpuDevice(setup.threads)
    from opstep.runtime.device.cuda.choice.choice import Kernels
    from opstep.runtime.device.cuda.device import device

    wanted = Kernels(setup.kernels, setup.autotune)
    return device(int(name.partition(":")[2] or 0)).with_kernels(wanted.checked())
