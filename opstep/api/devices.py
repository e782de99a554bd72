"""The devices that there are, by name: ``cpu``, ``cuda`` (the first GPU), ``cuda:1``, ``null``.

A new one is a folder under `opstep/runtime/device` and an entry in `KINDS`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from opstep.runtime.ir.errors import InputError

if TYPE_CHECKING:
    from opstep.runtime.device.protocols import Device, Recording
    from opstep.runtime.plan.plan import Fuse
    from opstep.runtime.transforms.composite import Composite

KERNELS = ("auto", "numba", "vendor")
HOST = "cpu"  # the device where named tensors are set, drawn and looked at


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
        kind = kind_of(device)
        if kind.gpu:
            return self._replace(threads=None)
        return Setup(self.threads, chaos=self.chaos) if kind.computes else PLAIN


PLAIN = Setup()


class Kind(NamedTuple):
    """What is known of devices without making one. `make(number, setup)` makes one: it raises
    `DeviceError` where the machine has none, or not the libraries that are asked for. `about`: for
    the help of ``--device``.
    """

    name: str
    make: Callable[[int, Setup], Device]
    about: str = ""
    gpu: bool = False  # several can be there, ``cuda:1``; they can hang, and choose between kernels
    computes: bool = True  # else results hold no values


def _cpu(number: int, setup: Setup) -> Device:
    from opstep.runtime.device.cpu.device import CpuDevice

    return CpuDevice(setup.threads)


def _cuda(number: int, setup: Setup) -> Device:
    from opstep.runtime.device.cuda.choice.choice import Kernels
    from opstep.runtime.device.cuda.device import device

    kernels = Kernels(setup.kernels, setup.autotune)
    return device(number).with_kernels(kernels.checked())


def _null(number: int, setup: Setup) -> Device:
    from opstep.runtime.device.null import NullDevice

    return NullDevice()


KINDS = [
    Kind("cpu", _cpu),
    Kind("cuda", _cuda, "cuda is the first NVIDIA GPU, cuda:1 the second", gpu=True),
    Kind(
        "null", _null, "null computes nothing, to measure what opstep itself takes", computes=False
    ),
]


def device_names(number: str = "1") -> list[str]:
    """The names that a device can have, one with that number for kinds of which there are many."""
    numbered = ([k.name, f"{k.name}:{number}"] if k.gpu else [k.name] for k in KINDS)
    return [name for names in numbered for name in names]


def is_device(name: str) -> bool:
    """Whether it is the name of a device of ours; runs of other libraries are recorded, too."""
    try:
        _parsed(name)
    except InputError:
        return False
    return True


def _parsed(name: str) -> tuple[Kind, int]:
    for kind in KINDS:
        if kind.name == name:
            return kind, 0
    found = re.fullmatch(r"([a-z]+):([0-9]{1,4})", name)
    for kind in KINDS:
        if found and found[1] == kind.name and kind.gpu:
            return kind, int(found[2])
    hint = f"there are: {', '.join(device_names())}"
    raise InputError(f"there is no device {name}", hint=hint)


def kind_of(name: str) -> Kind:
    """That of a device, by its name. Raises `InputError`."""
    return _parsed(name)[0]


def fusing_for(recording: Recording | None, device: str) -> Fuse:
    """Which ops of a run there may run as one. On the CPU each op of a recorded run is by itself;
    on a GPU, where that takes longer than a small op, the plan is like that of other runs.
    """
    from opstep.runtime.plan.plan import Fuse

    if recording is None:
        return Fuse.ALL
    return recording.fuses if kind_of(device).gpu else Fuse.NOTHING


def entered_on(device: str, steps: bool) -> Callable[[type[Composite], Any, dict], bool]:
    """Says of a composite whether plans for a device call its graph: where it has no kernel there,
    or, for who `steps` through it, where the graph has the bits of the kernel.
    """
    kind = kind_of(device)

    def enters(op: type[Composite], types: Any, attrs: dict) -> bool:
        exact = steps and kind.name in op.exact_on
        return exact or not op.has_kernel(kind.gpu, types, attrs)

    return enters


def canonical(name: str) -> str:
    """A device's name as it is written everywhere: the first GPU is ``cuda``.

    Raises `InputError`.
    """
    kind, number = _parsed(name)
    return f"{kind.name}:{number}" if number else kind.name


def check_computes(name: str, what: str) -> None:
    """Raises `InputError` where a device computes nothing that could be `what`."""
    if not kind_of(name).computes:
        raise InputError(f"the {name} device computes nothing that could be {what}")


def device_named(name: str, setup: Setup = PLAIN) -> Device:
    """The device of that name.

    Raises `InputError` for a name that says nothing, `DeviceError` as `Kind.make` does.
    """
    kind, number = _parsed(name)
    device = kind.make(number, setup)
    if setup.chaos is None or not kind.computes:
        return device
    from opstep.runtime.device.chaos import chaotic

    return chaotic(device, setup.chaos)
