"""How a graph is run: the names, defaults and bounds of all settings, for every door.

`Program.run`, `hunt`, `Debugger` and `diff` take them as arguments, commands as switches, the
debugger's server as arguments of ``launch``.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from opstep.api.devices import HOST, KERNELS, KINDS, PLAIN, Setup, canonical
from opstep.runtime.ir.errors import SettingError
from opstep.runtime.plan.plan import MODES, Policy

OPEN = 1 << 63  # the end of a range that has none worth telling
BUDGET = 2 << 30  # bytes of results that a debugger keeps, if nothing else is said


def setting(default: Any, help: str, values: Iterable[str] | range = ()) -> Any:
    """A field of `RunSettings`. `values`: the words or numbers that it can be, its default aside;
    none are given where `RunSettings` checks them itself.
    """
    values = values if isinstance(values, range) else tuple(values)
    return field(default=default, metadata={"help": help, "values": values})


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """How a graph is run. None stands for what the mode, the program or the machine has: the
    switches of the mode, the seed of the program, all cores.

    Raises `SettingError` for a value that a setting cannot have, `InputError` for a device's name
    that says nothing. Whether the machine has the device shows when it is used.
    """

    mode: str = setting(
        "async",
        "async: at full speed, several ops at a time. debug: op by op, in memory of their own. "
        "Each is a choice for the four switches below.",
        MODES,
    )
    streams: int | None = setting(
        None,
        "Most streams, which are queues of ops that run beside each other; 1 in debug mode.",
        range(1, 65),
    )
    alloc: str | None = setting(
        None,
        "Reuse the memory of tensors that nothing reads any more, or give every tensor its own; "
        "fresh in debug mode.",
        ("reuse", "fresh"),
    )
    fill: str | None = setting(
        None,
        "Fill memory with NaN before an op writes it, which shows what it leaves out; nan in "
        "debug mode.",
        ("none", "nan"),
    )
    sync: str | None = setting(
        None, "Wait for each op to end before the next one; op in debug mode.", ("none", "op")
    )
    device: str = setting(HOST, f"{'; '.join(k.about for k in KINDS if k.about)}.")
    kernels: str = setting(
        PLAIN.kernels,
        "The kernels to use on a GPU: numba (ours), vendor (NVIDIA's libraries for matrix "
        "products and convolutions), or auto (the fastest known).",
        KERNELS,
    )
    threads: int | None = setting(PLAIN.threads, "Number of threads per op.", range(1, 257))
    steps: int = setting(1, "Run this many times.", range(1, OPEN))
    seed: int | None = setting(
        None, "Seed for random inputs, and for params that are not loaded.", range(OPEN)
    )
    autotune: bool = setting(
        PLAIN.autotune,
        "Time all kernels of an op on the GPU, once for each shape, and remember the fastest.",
    )
    chaos: int | None = setting(
        PLAIN.chaos,
        "Delay the streams at random, with this seed. Results change only if an op does not wait "
        "for another that it depends on (a race).",
        range(OPEN),
    )

    def __post_init__(self) -> None:
        for name, default, values in BOUNDED:
            value = getattr(self, name)
            if value is not default and not _among(value, values):
                raise SettingError(name, value, _listed(values, value))
        if (device := canonical(self.device)) != self.device:
            object.__setattr__(self, "device", device)

    def __str__(self) -> str:
        """``debug, streams=2``: the mode, and what is not by default."""
        changed = [f"{f.name}={v}" for f in FIELDS[1:] if (v := getattr(self, f.name)) != f.default]
        return ", ".join([self.mode, *changed])

    @staticmethod
    def of(values: Mapping[str, Any]) -> RunSettings:
        """Those that are found there by name; the others have their defaults."""
        return RunSettings(**{f.name: values[f.name] for f in FIELDS if f.name in values})

    @property
    def policy(self) -> Policy:
        """The preset of the mode, with the switches that are given in place of its own."""
        preset = MODES[self.mode]
        return Policy(
            self.streams or preset.streams,
            self.alloc or preset.alloc,
            self.fill or preset.fill,
            self.sync or preset.sync,
        )

    @property
    def setup(self) -> Setup:
        """What the device is asked for."""
        return Setup(self.threads, self.kernels, self.autotune, self.chaos)


FIELDS = fields(RunSettings)
BOUNDED = [(f.name, f.default, f.metadata["values"]) for f in FIELDS if f.metadata["values"]]


def _among(value: Any, values: tuple[str, ...] | range) -> bool:
    if isinstance(values, tuple):
        return value in values
    try:
        return values.start <= operator.index(value) < values.stop
    except TypeError:
        return False


def _listed(values: tuple[str, ...] | range, got: Any) -> str:
    """``async or debug``, ``1 to 64``, ``1 or more``; what is past `OPEN` is told where it ends."""
    if isinstance(values, range):
        is_open = values.stop == OPEN and not (isinstance(got, int) and got >= OPEN)
        return f"{values[0]} or more" if is_open else f"{values[0]} to {values[-1]}"
    return f"{', '.join(values[:-1])} or {values[-1]}"


def policy(
    mode: str = "async", streams: int | None = None, alloc: str | None = None,
    fill: str | None = None, sync: str | None = None,
) -> Policy:  # fmt: skip
    """The four switches: the preset of a mode ("async" or "debug"), with those given replaced."""
    return RunSettings(mode=mode, streams=streams, alloc=alloc, fill=fill, sync=sync).policy
