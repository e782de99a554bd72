"""Programs whose ops may be other libraries': ``--fallback torch``, ``--import mylib``."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from opstep.cli.common import option
from opstep.runtime.ir.foreign import LIBRARIES

if TYPE_CHECKING:
    from opstep.api.program import Program

FALLBACK = "PyTorch runs the ops that have no counterpart, and those that a program names."


fallback_option = option("--fallback", FALLBACK, click.Choice(list(LIBRARIES)))


import_option = option(
    "--import MODULE…",
    "Import a Python module first, which registers ops for --fallback torch. Can be given several "
    "times.",
    to="imports",
)


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
