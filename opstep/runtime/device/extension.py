"""Extension modules of ours in C++: compiled once for each source and machine, and kept."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from opstep.runtime.device.cache import Compiler

PROBE_S = 300
STALE_S = 3600  # after which nobody is compiling it any more


class Unavailable(Exception):
    """An extension is not there, for a reason that a person can do something about."""


@dataclass(frozen=True)
class Extension:
    """A module `name`, from the files of a folder. `units`: those that are compiled, with the level
    of optimization; `stands_on`: what else makes for another binary; `probe`: a program that is
    given the file, and fails where the module does not work.
    """

    name: str
    file: str  # of the compiled module, without its digest
    sources: Path
    units: Mapping[str, str]
    flags: Sequence[str]
    optional: Sequence[str] = ()  # flags that are left out where the compiler fails with them
    libraries: Sequence[str] = ()
    stands_on: tuple[Any, ...] = ()
    probe: str = ""
    works_with: str = f"Python {sys.version.split()[0]}"  # named where it does not

    @cached_property
    def path(self) -> Path:
        """Of the compiled file: another Python, machine or source has another."""
        sources = b"".join(p.read_bytes() for p in sorted(self.sources.iterdir()) if p.is_file())
        parts = (*self.stands_on, sys.implementation.cache_tag, os.uname().machine)
        digest = hashlib.sha256(f"{parts} {self.flags} {self.units}".encode() + sources).hexdigest()
        return Compiler.cache_folder() / f"{self.file}-{digest[:24]}.so"

    def load(self) -> Any:
        """The module, which was built."""
        module = sys.modules.get(self.name)
        if module is None:
            spec = importlib.util.spec_from_file_location(self.name, self.path)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            sys.modules[self.name] = module
        return module

    def build(self, gently: bool = False) -> None:
        """Compiles it, if it is not there, and tries it in another process. `gently`: at low
        priority. Raises `Unavailable`.
        """
        if self.path.exists():
            return
        if missing := what_is_missing():
            raise Unavailable(f"it takes {missing}")
        try:
            self._build(gently)
        except Unavailable as error:
            self._failure.write_text(str(error), "utf-8")
            raise

    @property
    def _failure(self) -> Path:
        return self.path.with_suffix(".failed")

    @property
    def failed(self) -> str:
        """Why it could not be built lately; "" where that is not known."""
        try:
            is_late = time.time() - self._failure.stat().st_mtime < STALE_S
            return self._failure.read_text("utf-8") if is_late else ""
        except OSError:
            return ""

    def _build(self, gently: bool) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.path.parent) as folder:
            made = Path(folder) / f"{self.name}.so"
            nice = ["nice", "-n", "19"] if gently and shutil.which("nice") else []
            try:
                self._compile(made, nice, self.optional)
            except Unavailable:
                if not self.optional:
                    raise
                self._compile(made, nice, ())
            self._try(made)
            os.replace(made, self.path)

    def build_in_background(self, program: str) -> None:
        """Compiles it in a process of its own, which outlives this one; one at a time. `program`
        builds it, and removes the file that it is given.
        """
        lock = self.path.with_suffix(".building")
        lock.parent.mkdir(parents=True, exist_ok=True)
        try:
            if lock.exists() and time.time() - lock.stat().st_mtime > STALE_S:
                lock.unlink()
            os.close(os.open(lock, os.O_CREAT | os.O_EXCL))
        except OSError:  # another process is at it, or nothing can be kept
            return
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, sys.path)))
        quiet = subprocess.DEVNULL
        subprocess.Popen(
            ["env", sys.executable, "-c", program, str(lock)],  # see `_try`
            env=environment, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True,
        )  # fmt: skip

    def _try(self, made: Path) -> None:
        # By `env`: a debugger that follows Python's children would have it wait for a client.
        words = ["env", sys.executable, "-c", self.probe, str(made)]
        tried = subprocess.run(words, capture_output=True, text=True, timeout=PROBE_S)
        if tried.returncode:
            said = (tried.stderr.strip().splitlines() or [f"exit code {tried.returncode}"])[-1]
            raise Unavailable(f"it does not work with {self.works_with}: {said}")

    def _compile(self, target: Path, nice: list[str], optional: Sequence[str]) -> None:
        """All files at once. Raises `Unavailable`."""
        objects, running = [], []
        for name, level in self.units.items():
            made = target.with_name(f"{name}.o")
            standard = [] if name.endswith(".c") else ["-std=c++20"]
            words = [compiler(), *(["-xc"] if name.endswith(".c") else []), "-c"]
            words += [
                str(self.sources / name),
                level,
                *standard,
                *self.flags,
                *optional,
                "-o",
                str(made),
            ]
            objects.append(str(made))
            running.append(_started([*nice, *words]))
        for process in running:
            _ended(process)
        words = [compiler(), "-shared", *objects, *self.libraries, *optional]
        words += ["-o", str(target)]
        _ended(_started([*nice, *words]))


def what_is_missing() -> str:
    """Names what compiling takes and is not there; "" where nothing is missing."""
    if shutil.which(compiler()) is None:
        return f"{compiler()}, a C++ compiler (CXX names another)"
    include = Path(sysconfig.get_paths()["include"])
    if not (include / "Python.h").exists():
        return f"Python's headers (Python.h in {include})"
    return ""


def compiler() -> str:
    return os.environ.get("CXX", "g++")


def _started(words: list[str]) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(words, stdout=pipe, stderr=subprocess.STDOUT, text=True)


def _ended(process: subprocess.Popen[str]) -> None:
    said, _ = process.communicate()
    if process.returncode:
        errors = [line for line in said.splitlines() if "error" in line] or said.splitlines()[-1:]
        raise Unavailable(f"{compiler()} fails: {errors[0] if errors else process.returncode}")
