"""Kinds of `OpstepError`, by who can do something about them. A plain one is about the program."""

from __future__ import annotations

from opstep.runtime.ir.diagnostics import OpstepError


class InputError(OpstepError):
    """What was given does not fit: a file, an input, a param, a symbol, an argument."""


class SettingError(InputError):
    """A setting of a run that has a value that it cannot have: `got`, in place of `expected`."""

    def __init__(self, name: str, got: object, expected: str):
        super().__init__(f"{name} is {got!r}; it can be {expected}")
        self.name = name
        self.got = got
        self.expected = expected


class DeviceError(OpstepError):
    """The machine cannot do it: out of memory, no such device."""
