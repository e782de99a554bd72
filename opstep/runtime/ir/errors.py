"""Kinds of `OpstepError`, by who can do something about them. A plain one is about the program."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from opstep.runtime.ir.diagnostics import OpstepError, did_you_mean, names_listed
from opstep.runtime.ir.wording import ARRAY, Argument, Wording


class InputError(OpstepError):
    """What was given does not fit: a file, an input, a param, a symbol, an argument."""


class SettingError(InputError):
    """A setting of a run that has a value that it cannot have: `got`, in place of `expected`."""

    def __init__(self, name: str, got: object, expected: str):
        super().__init__(f"{name} is {got!r}; it can be {expected}")
        self.name = name
        self.got = got
        self.expected = expected


class UnknownName(InputError):
    """A name that nothing has: `name`, in place of one of `candidates`, which `listing` begins to
    tell in a hint where none is near.
    """

    def __init__(
        self, what: str, name: str, candidates: Iterable[str], listing: str = "there are:"
    ):
        self.name = name
        self.candidates = tuple(candidates)
        listed = (
            f"{listing} {names_listed(self.candidates)}" if self.candidates else "there are none"
        )
        super().__init__(what, hint=did_you_mean(name, self.candidates) or listed)


class MissingInputs(InputError):
    """Inputs of a graph that nothing was given for: `names`. `example`: the program has an example
    of them.
    """

    def __init__(self, what: str, names: Iterable[str], example: bool = False, **location: Any):
        self.names = tuple(names)
        ways = [
            ("give ", Argument("inputs", {self.names[0]: ARRAY})),
            (Argument("inputs", "random"), " for all of them"),
        ]
        if example:
            saved = (Argument("inputs", "example"), " for those that were saved with the program")
            ways.append(saved)
        super().__init__(what, hint=Wording.any_of(*ways), **location)


class UnboundSymbols(InputError):
    """Symbols that nothing says the size of: `symbols`."""

    def __init__(self, what: str, symbols: Iterable[str]):
        self.symbols = tuple(symbols)
        sizes = Argument("symbols", dict.fromkeys(self.symbols, 8))
        super().__init__(what, hint=Wording("add ", sizes))


class DeviceError(OpstepError):
    """The machine cannot do it: out of memory, no such device."""
