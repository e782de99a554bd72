"""Kinds of `OpstepError`, by who can do something about them. A plain one is about the program."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from typing import Any

from opstep.runtime.ir.diagnostics import (
    OpstepError,
    Suggestion,
    did_you_mean,
    names_listed,
    nearest,
)
from opstep.runtime.ir.wording import ARRAY, Argument, Wording

_MOST_FILES = 1000  # of a folder, among which a name is looked for


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


class NoSuchFile(InputError):
    """A path that leads nowhere. The hint has the names that are near, or the files of the folder
    that are of its kind.
    """

    def __init__(self, path: str | os.PathLike[str], what: str = "there is no such file"):
        shown = os.fspath(path)
        folder, name = os.path.split(shown)
        with suppress(OSError, ValueError):
            files = sorted(islice(os.listdir(folder or "."), _MOST_FILES))
            files.sort(key=lambda f: not os.path.splitext(f)[1])
            same = [f for f in files if os.path.splitext(f)[1] == os.path.splitext(name)[1]]
            near = [os.path.join(folder, f) for f in nearest(name, same) or nearest(name, files)]
            listed = names_listed([os.path.join(folder, f) for f in same])
            none = f"the folder has no {os.path.splitext(name)[1] or 'such'} file"
            hint = Suggestion(near) if near else f"there are {listed}" if listed else none
            super().__init__(f"{shown}: {what}", hint=hint)
            return
        super().__init__(f"{shown}: {what}")


class MissingInputs(InputError):
    """Inputs of a graph that nothing was given for: `names`. `example`: the program has an example
    of them. `symbols`: those that have no size, either.
    """

    def __init__(
        self, what: str, names: Iterable[str], example: bool = False,
        symbols: Iterable[str] = (), **location: Any,
    ):  # fmt: skip
        self.names = tuple(names)
        sizes = dict.fromkeys(symbols, 8)
        drawn = (
            Argument("inputs", "random"),
            *((" ", Argument("symbols", sizes)) if sizes else ()),
        )
        ways = [
            ("give ", Argument("inputs", {self.names[0]: ARRAY})),
            (*drawn, " for all of them"),
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


class NotFinite(OpstepError):
    """A result that a run is watched for is a NaN or an infinity."""
