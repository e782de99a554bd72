"""The cache of compiled kernels on disk, and callbacks around each compilation.

A file holds a line of JSON (its `sha256` is that of the code) and the code. Files are written
atomically, so processes may share the folder; one that is damaged is compiled anew.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from opstep.runtime.interrupts import Held
from opstep.runtime.recording import spending

T = TypeVar("T")

# What kernels that are no op's are for, by their names.
OWN = {
    "run_table": "the loop over ops",
    "launch_rows": "the loop over ops",
    "help_forever": "threads that share an op",
    "read_clock": "the clock",
    "write_histograms": "histograms",
    "write_figures": "the timeline",
}


class Compiler:
    """Settings and counts of compilation, for every target."""

    folder: Path | None = None  # None: OPSTEP_CACHE, else the user's cache folder
    on_compile: Callable[[str], None] | None = None  # gets the kernel's name, before it is compiled
    on_tune: Callable[[str], None] | None = None  # gets the op whose kernels are about to be tried
    on_compiled: Callable[[str], None] | None = None  # and after that, also if that failed
    compiled: int = 0  # kernels compiled by this process
    expected: int = 0  # how many that will be when all that is bound has its kernels
    before: int = 0  # how many it was before the first of these

    @classmethod
    def expect(cls, uncompiled: Callable[[], int]) -> None:
        """So many kernels are compiled next. Callers skip it where `on_compile` is None."""
        if cls.expected <= cls.compiled:
            cls.before = cls.compiled
        cls.expected = max(cls.expected, cls.compiled + uncompiled())

    @classmethod
    def count(cls) -> str:
        """Of the kernel that is about to be compiled: ``3 of 24``, or its number alone where nobody
        knew of it.
        """
        number, total = cls.compiled + 1 - cls.before, cls.expected - cls.before
        return f"{number} of {total}" if number <= total else str(number)

    @classmethod
    def cache_folder(cls) -> Path:
        if cls.folder is not None:
            return cls.folder
        if os.environ.get("OPSTEP_CACHE"):
            return Path(os.environ["OPSTEP_CACHE"]).absolute()
        from platformdirs import user_cache_path

        return user_cache_path("opstep") / "kernels"


def cached(
    key: str,
    suffix: str,
    name: str,
    make: Callable[[], tuple[dict, bytes]],
    load: Callable[[dict, bytes], T | None],
) -> T:
    """The value that `load` makes of the header and code kept for `key`. Where there are none, or
    `load` gives nothing, `make` compiles them and they are kept.

    `name`: the kernel's, for the callbacks. A folder that cannot be written costs only time. Ctrl-C
    is held until the kernel is loaded: a compiler that is half imported cannot be used again.
    """
    with Held():
        return _cached(key, suffix, name, make, load)


def _cached(key: str, suffix: str, name: str, make: Any, load: Any) -> Any:
    path = _path(key, suffix)
    found = _read(path)
    if found is not None and (loaded := load(*found)):
        return loaded
    shown = OWN.get(name, name)
    if Compiler.on_compile:
        Compiler.on_compile(shown)
    try:
        with spending("compile", name):
            found = make()
    finally:
        if Compiler.on_compiled:
            Compiler.on_compiled(shown)
    Compiler.compiled += 1
    _write(path, *found)
    loaded = load(*found)
    assert loaded is not None, "what was just compiled can be loaded"
    return loaded


def is_kept(key: str, suffix: str) -> bool:
    """Whether there is a file for `key`."""
    return _path(key, suffix).is_file()


def _path(key: str, suffix: str) -> Path:
    return Compiler.cache_folder() / f"{hashlib.sha256(key.encode()).hexdigest()[:40]}{suffix}"


def _read(path: Path) -> tuple[dict, bytes] | None:
    """Header and code; None where there is no whole file (another process may be writing it)."""
    try:
        head, _, code = path.read_bytes().partition(b"\n")
        header = json.loads(head)
        complete = header["sha256"] == hashlib.sha256(code).hexdigest()
        complete = complete and type(header["symbol"]) is str
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
    return (header, code) if complete else None


def _write(path: Path, header: dict, code: bytes) -> None:
    import tempfile

    header = {**header, "sha256": hashlib.sha256(code).hexdigest()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(json.dumps(header).encode() + b"\n" + code)
            os.replace(name, path)
        except OSError:
            os.unlink(name)
    except OSError:
        return
