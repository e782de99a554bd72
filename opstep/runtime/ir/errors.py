"""Kinds of `OpstepError`, by who can do something about them. A plain one is about the program."""

from __future__ import annotations

from opstep.runtime.ir.diagnostics import OpstepError


class InputError(OpstepError):
    """What was given does not fit: a file, an input, a param, a symbol, an argument."""


class DeviceError(OpstepError):
    """The machine cannot do it: out of memory, no such device."""
