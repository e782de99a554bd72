"""Options that several commands take, declared once, and the programs that they ask for, whose ops
may be other libraries': ``--fallback torch``, ``--import mylib``.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from opstep.api.devices import HOST, canonical, device_names, kind_of
from opstep.api.settings import FIELDS, OPEN
from opstep.cli.common import Decorator, FloatRange, grouped, is_explicit, option
from opstep.runtime.ir.amounts import parse_size
from opstep.runtime.ir.foreign import LIBRARIES
from opstep.runtime.ir.mesh import MOST_RANKS

if TYPE_CHECKING:
    from opstep.api.program import Program

SETTINGS = {f.name: f for f in FIELDS}
KERNELS = ("kernels", "autotune")
POLICY = ("mode", "streams", "alloc", "fill", "sync")
METAVARS = {"device": "|".join(device_names("N")), "chaos": "SEED"}


FALLBACK = "PyTorch runs the ops that have no counterpart, and those that a program names."


fallback_option = option("--fallback", FALLBACK, click.Choice(list(LIBRARIES)))


import_option = option(
    "--import MODULE…",
    "Import a Python module first, which registers ops for --fallback torch. Can be given several "
    "times.",
    to="imports",
)


graph_option = option("--graph -g NAME", "The graph to run. Default: the only one, or main.")


symbol_option = option(
    "--symbol -s N=SIZE…",
    "Size of a dimension that the program only names, such as N of f32[N, 3]; or the element type "
    "that T of T[N] is (T=f16). Can be given several times.",
    to="symbols",
)


def program_options(**of_inputs: Any) -> Decorator:
    """Of commands that run a graph of a program: which one, and on what. `of_inputs`: of the option
    ``--input``.
    """
    return grouped(
        graph_option,
        option(
            "--input -i NAME=SOURCE…",
            "FILE.npy, FILE.npz[:KEY], FILE.safetensors[:KEY], FILE.parquet:COLUMN, FOLDER:images "
            "(as opstep train reads them), or a fill: random (normal floats, integers 0 to 9, "
            "unless the ops that read it take others, such as labels or square roots), 0..100 "
            "(random in that range), zeros, ones or a number; or example: what was saved with the "
            "program. Without NAME=, random, zeros, ones or example apply to all other inputs.",
            to="inputs",
            **of_inputs,
        ),
        symbol_option,
        option(
            "--params FILE",
            "Load all params, and states, from a safetensors file. Without it, those that have no "
            "initialiser are read from NAME.safetensors beside the program.",
        ),
    )


def _extent(value: str) -> tuple[str, int]:
    """``data=4``, as a pair."""
    name, _, text = value.partition("=")
    if not (name.isidentifier() and text.isascii() and text.isdigit() and int(text) > 0):
        raise click.BadParameter(f"{value} is not an AXIS=RANKS, such as data=4")
    return name, int(text)


# ``--check`` and ``--rank-timeout``: of commands that start ranks.
started_ranks_options = grouped(
    option(
        "--check",
        "Ranks compare what they are at before each collective. So a program runs of which that "
        "cannot be told beforehand, as its branches depend on what each rank has.",
    ),
    option(
        "--rank-timeout SECONDS",
        "How long a rank waits for others in a collective, before it ends and says where each "
        "stands.",
        FloatRange(0.1),
        default=1800.0,
    ),
)


# ``--ranks`` and ``--mesh``: of how many processes a program is for.
ranks_options = grouped(
    option(
        "--ranks N",
        "For so many ranks: processes that run the program together.",
        click.IntRange(1, MOST_RANKS),
    ),
    option(
        "--mesh AXIS=RANKS…",
        "Ranks along an axis of the mesh, in place of those that the program declares. Can be "
        "given several times.",
        _extent,
    ),
)


class Size(click.ParamType):
    """``500M``, ``1.5 GiB``, in bytes."""

    name = "size"

    def __init__(self, least: int = 0):
        self.least = least

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        nbytes = parse_size(str(value))
        if nbytes is None:
            self.fail(f"{value!r} is not a size: write 500M or 2G.", param, ctx)
        if nbytes < self.least:
            self.fail(f"{value!r} is less than {self.least} byte.", param, ctx)
        return nbytes


def _device(value: str) -> str:
    """A name that `canonical` knows."""
    from opstep.runtime.ir.errors import InputError

    try:
        return canonical(value)
    except InputError as error:
        diagnostic = error.diagnostics[0]
        raise click.BadParameter(f"{diagnostic.message}; {diagnostic.hint}") from None


def _tag(value: str) -> tuple[str, str | int | float]:
    """``lr=0.1``, as a pair; a value that is a finite number is one."""
    name, equals, text = value.partition("=")
    if not (name and equals):
        raise click.BadParameter(f"{value} is not a NAME=VALUE")
    for kind in (int, float):
        with suppress(ValueError):
            number = kind(text)
            if abs(number) < 1 << 63:
                return name, number
    return name, text


def _every(value: str | int) -> int:
    """``every=10``, or the number alone."""
    text = str(value).removeprefix("every=")
    if not (text.isascii() and text.isdigit() and len(text) < 18):
        raise click.BadParameter(f"{value} is not an every=N")
    return int(text)


def setting_options(*names: str, **defaults: Any) -> Decorator:
    """The switches of these settings of a run, some with a default of their own."""
    own = {name: {"default": value} for name, value in defaults.items()}
    return grouped(*(setting_option(name, **own.get(name, {})) for name in names))


def setting_option(name: str, **other: Any) -> Decorator:
    """The switch of a setting, as `RunSettings` declares it; `other` of `click.option` instead."""
    declared = SETTINGS[name]
    how = {"default": declared.default, "help": declared.metadata["help"]} | other
    how["metavar"] = METAVARS.get(name)
    values = declared.metadata["values"]
    if declared.default is False:
        return click.option(f"--{name}", is_flag=True, **how)
    if name == "device":
        how["type"] = _device
    elif isinstance(values, range):
        most = None if values.stop == OPEN else values[-1]
        how["type"] = click.IntRange(values.start, most)
    else:
        how["type"] = click.Choice(values)
    return click.option(f"--{name}", show_default=how["default"] is not None, **how)


# What to do where a GPU fails.
gpu_options = grouped(
    option(
        "--fallback",
        "cpu: if there is no GPU, or it runs out of memory, continue on the CPU. torch: "
        + FALLBACK,
        click.Choice([HOST, *LIBRARIES]),
    ),
    option(
        "--timeout SECONDS",
        "Time limit for an op on a GPU in debug mode. Default: 60.",
        FloatRange(0, min_open=True),
    ),
)


naming_options = grouped(
    option("--name NAME", "Name of the run in the workspace."),
    option(
        "--tag NAME=VALUE…",
        "Label to find the run by, such as lr=0.1. Can be given several times.",
        _tag,
        to="tags",
    ),
)

# ``--workspace``, ``--trace``, and whose statistics the workspace gets.
recording_options = grouped(
    option(
        "--workspace -w FILE.db",
        "Record the run in a workspace: statistics, times, named tensors (SQLite).",
    ),
    option(
        "--trace FILE.pftrace", "Write a timeline: when each op ran, on which stream (Perfetto)."
    ),
    option("--trace-steps LO:HI", "Only these steps in the timeline, from LO to HI - 1: 100:110."),
    option(
        "--stats WHICH",
        "Tensors whose statistics are recorded: all, outputs, none, or names of values: "
        '"relu:*,conv1.*" are all results of relu and all values called conv1.…',
        default="all",
    ),
    option(
        "--stats-every N",
        "Record statistics only in every Nth step, and without --trace times as well.",
        click.IntRange(1),
        default=1,
    ),
    option(
        "--stats-also WHAT",
        "More statistics of these tensors: quantiles, signed (histograms by sign), channels "
        "(minimum, maximum and zeros of each channel, along axis 1 or channels=AXIS).",
        default="",
    ),
    naming_options,
    option(
        "--keep-inputs every=N",
        "Save inputs, params and states in every Nth step, to rerun from there.",
        _every,
        default=0,
    ),
)


# --- programs, as these options have them ---


def check_kernels(options: Mapping[str, Any]) -> None:
    """Complains of a choice between kernels where there is none."""
    from opstep.runtime.ir.errors import InputError

    for name in KERNELS:
        if is_explicit(name) and not kind_of(options["device"]).gpu:
            raise InputError(f"--{name} is for GPUs", hint="add --device cuda")


def load_program(file: str, options: Mapping[str, Any]) -> Program:
    """The program of a file, as these options have it. Raises `OpstepError`."""
    from opstep.api.program import load

    import_modules(options["imports"])
    mesh = dict(options.get("mesh") or ()) or None
    return load(file, fallback=library_of(options), ranks=options.get("ranks"), mesh=mesh)


def library_of(options: Mapping[str, Any]) -> str | None:
    """The library that may run ops."""
    return options["fallback"] if options["fallback"] in LIBRARIES else None


def import_modules(names: Sequence[str]) -> None:
    """Imports what the user names; those of the current folder, too, as ``python -m`` does. Raises
    `InputError`.
    """
    from opstep.runtime.ir.errors import InputError

    if names and (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:  # of any class: it is the user's code
            reason = f"{type(error).__name__}: {error}"
            raise InputError(f"--import {name}: it cannot be imported: {reason}") from None
