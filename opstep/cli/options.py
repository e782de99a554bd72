"""Options that several commands take, declared once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import click

from opstep.api.devices import HOST, KERNELS, KINDS, canonical, known_names
from opstep.cli.common import FloatRange


def graph_option(function: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--graph", "-g", metavar="NAME", help="Which graph; default: the only one, or main."
    )(function)


def symbol_option(function: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--symbol",
        "-s",
        "symbols",
        multiple=True,
        metavar="N=SIZE",
        help="Size of a symbolic dim. Can be given many times.",
    )(function)


class _Device(click.ParamType):
    """A name that `canonical` knows."""

    name = "device"

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        from opstep.runtime.ir.errors import InputError

        try:
            return canonical(value)
        except InputError as error:
            said = error.diagnostics[0]
            return self.fail(f"{said.message}; {said.hint}", param, ctx)


class _Tag(click.ParamType):
    """``lr=0.1``, as a pair; a value that is a finite number is one."""

    name = "tag"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[str, str | int | float]:
        name, equals, text = value.partition("=")
        if not (name and equals):
            self.fail(f"{value} is no NAME=VALUE", param, ctx)
        for kind in (int, float):
            with suppress(ValueError):
                number = kind(text)
                if abs(number) < 1 << 63:
                    return name, number
        return name, text


class _Every(click.ParamType):
    """``every=10``, or the number alone."""

    name = "every"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        text = str(value).removeprefix("every=")
        if not (text.isascii() and text.isdigit() and len(text) < 18):
            self.fail(f"{value} is no every=N", param, ctx)
        return int(text)


def device_option(function: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--device",
        type=_Device(),
        default=HOST,
        show_default=True,
        metavar="|".join(known_names("N")),
        help="; ".join(k.about for k in KINDS if k.about) + ".",
    )(function)


def kernel_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Whose kernels a GPU runs."""
    options = [
        click.option(
            "--kernels",
            type=click.Choice(KERNELS),
            default="auto",
            show_default=True,
            help="Whose kernels run on a GPU: numba is ours, vendor those of NVIDIA's libraries "
            "for matrix products and convolutions, auto the fastest known.",
        ),
        click.option(
            "--autotune",
            is_flag=True,
            help="Try all kernels of an op on the GPU and keep which is fastest, once for each "
            "shape.",
        ),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def gpu_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """What to do where a GPU fails."""
    options = [
        click.option(
            "--fallback",
            type=click.Choice([HOST]),
            help="Where the GPU is absent or out of memory, continue on the CPU.",
        ),
        click.option(
            "--timeout",
            type=FloatRange(0, min_open=True),
            metavar="SECONDS",
            help="How long one op may run on a GPU in debug mode: 60 by default.",
        ),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def running_options(function: Callable[..., Any], steps: int | None = 1) -> Callable[..., Any]:
    """How many threads share the work, how often it is run (by default `steps` times), and what is
    drawn.
    """
    options = [
        click.option(
            "--threads", type=click.IntRange(1, 256), help="Threads that share an op's work."
        ),
        click.option(
            "--steps",
            type=click.IntRange(1),
            default=steps,
            show_default=steps is not None,
            help="Run this many times.",
        ),
        click.option(
            "--seed",
            type=click.IntRange(0, 2**31 - 1),
            default=0,
            show_default=True,
            help="Of random inputs, and of params that were not loaded.",
        ),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def recording_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """``--workspace``, ``--trace``, and whose statistics the workspace gets."""
    options = [
        click.option(
            "--workspace",
            "-w",
            metavar="FILE.db",
            help="Record the run in a workspace: statistics, times, named tensors (SQLite).",
        ),
        click.option(
            "--trace",
            metavar="FILE.pftrace",
            help="Write a timeline: what ran when on which stream (Perfetto).",
        ),
        click.option(
            "--trace-steps",
            metavar="LO:HI",
            help="Only these steps in the timeline, from LO up to HI without it: 100:110.",
        ),
        click.option(
            "--stats",
            default="all",
            show_default=True,
            metavar="WHICH",
            help="Whose statistics go to the workspace: all, outputs, none, or names of values: "
            '"relu:*,conv1.*" are all results of relu and all values called conv1.…',
        ),
        click.option(
            "--stats-every",
            type=click.IntRange(1),
            default=1,
            show_default=True,
            metavar="N",
            help="Statistics of each Nth step only.",
        ),
        click.option(
            "--stats-also",
            default="",
            metavar="WHAT",
            help="Take more of these tensors: quantiles, signed (a histogram of either sign), "
            "channels (minimum, maximum, zeros of each along axis 1, or channels=AXIS).",
        ),
        click.option("--name", metavar="NAME", help="What the run is called in the workspace."),
        click.option(
            "--tag",
            "tags",
            multiple=True,
            type=_Tag(),
            metavar="NAME=VALUE",
            help="What the run can be found by, such as lr=0.1. Can be given many times.",
        ),
        click.option(
            "--keep-inputs",
            type=_Every(),
            default=0,
            metavar="every=N",
            help="Keep inputs, params and states of each Nth step: a repeat can begin there.",
        ),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def chaos_option(function: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--chaos",
        type=click.IntRange(0, 2**31 - 1),
        metavar="SEED",
        help="Delay the streams at random, from this seed: results change only where there is a "
        "race.",
    )(function)


def policy_options(function: Callable[..., Any], mode: str = "async") -> Callable[..., Any]:
    """``--mode``, by default this one, and the four switches that it presets."""
    options = [
        click.option(
            "--mode",
            type=click.Choice(["async", "debug"]),
            default=mode,
            show_default=True,
            help="Preset of the four switches below.",
        ),
        click.option(
            "--streams",
            type=click.IntRange(1, 64),
            help="Streams to plan for: 1 in debug mode.",
        ),
        click.option(
            "--alloc",
            type=click.Choice(["reuse", "fresh"]),
            help="Memory is reused, or every tensor keeps its own: fresh in debug mode.",
        ),
        click.option(
            "--fill",
            type=click.Choice(["none", "nan"]),
            help="Fill memory with NaN before it is written: nan in debug mode.",
        ),
        click.option(
            "--sync",
            type=click.Choice(["none", "op"]),
            help="Wait for each op: op in debug mode.",
        ),
    ]
    for option in reversed(options):
        function = option(function)
    return function
