"""What was found out about the ways to run an op, kept from run to run: with `--autotune` the time
of each, else the one that was taken when the op ran first.

A table belongs to one GPU model with one version of driver and libraries, and is a file of JSON in
the folder of compiled kernels. Files are written atomically and merged under a lock, so processes
may share them; one that is damaged counts as empty and is written anew.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import re
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from opstep.runtime.device.cache import Compiler
from opstep.runtime.ir.types import TensorType
from opstep.runtime.plan.plan import Step

FORMAT = 3  # of the file, and of how libraries' ways are named

Times = dict[str, float]
"""Microseconds of each way to run an op, by its name."""


def key_of(step: Step, types: tuple[TensorType | None, ...]) -> str:
    """An op on tensors of certain types, as text: ``linear(f32[8, 4], f32[2, 4]) -> f32[8, 2]``."""
    count = len(step.operand_types)
    given = ", ".join("none" if t is None else str(t) for t in types[:count])
    seen = ", ".join("none" if t is None else t.dtype.name for t in step.operand_types)
    attrs = ", ".join(f"{name}={value}" for name, value in step.attrs.items())
    results = ", ".join(str(t) for t in types[count:])
    return f"{step.op.name}({given}) as {seen} {{{attrs}}} -> {results}"


class _Known(NamedTuple):
    """The contents of a file: times, and choices where there are none, both by op."""

    times: dict[str, Times]
    taken: dict[str, str]


class TuningTable:
    """Times by op. Read once: what other processes add meanwhile does not change what runs here."""

    def __init__(self, path: Path, about: str):
        self.path = path
        self.about = about
        self._lock = threading.Lock()
        self._known = _read(path, about)

    def get(self, key: str) -> Times | None:
        return self._known.times.get(key)

    def put(self, key: str, times: Times) -> None:
        """Keeps them, here and in the file. A folder that cannot be written costs only time."""
        self._keep(key, times=times)

    def chosen(self, key: str) -> str | None:
        """The way that was taken for an op that has no times."""
        return self._known.taken.get(key)

    def choose(self, key: str, name: str) -> None:
        """Keeps it, so that the next run gives the same bits."""
        if self.chosen(key) != name:
            self._keep(key, taken=name)

    def _keep(self, key: str, **found: Any) -> None:
        with self._lock:
            self._add(self._known, key, found)
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with _locked(self.path.with_suffix(".lock")):
                    there = _read(self.path, self.about)
                    self._add(there, key, found)
                    _write(self.path, self.about, there)
            except OSError:
                return

    @staticmethod
    def _add(known: _Known, key: str, found: dict[str, Any]) -> None:
        for field, value in found.items():
            getattr(known, field)[key] = value

    def __len__(self) -> int:
        return len(self._known.times)


@cache
def table(name: str, about: str) -> TuningTable:
    """The process's table for a GPU called `name`; `about` has all that the times depend on."""
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "gpu"
    digest = hashlib.sha256(about.encode()).hexdigest()[:12]
    return TuningTable(Compiler.cache_folder() / "tuning" / f"{slug}-{digest}.json", about)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One process at a time."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _read(path: Path, about: str) -> _Known:
    """The valid contents of a file; nothing where it is damaged or of another version."""
    try:
        found = json.loads(path.read_text())
        if found["format"] != FORMAT or found["about"] != about:
            return _Known({}, {})
        times = {str(key): dict(us) for key, us in found["times"].items() if _sound(us)}
        taken = {str(key): n for key, n in found["taken"].items() if isinstance(n, str)}
        return _Known(times, taken)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return _Known({}, {})


def _sound(times: Any) -> bool:
    return isinstance(times, dict) and all(
        isinstance(us, (int, float)) and math.isfinite(us) and us > 0 for us in times.values()
    )


def _write(path: Path, about: str, known: _Known) -> None:
    content = {"format": FORMAT, "about": about, **known._asdict()}
    handle, name = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "w") as file:
            json.dump(content, file, indent=1)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
