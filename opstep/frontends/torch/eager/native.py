"""Watches ops by C++, compiled once for each PyTorch and kept: see `native/watcher.cpp`."""

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
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from opstep.frontends.torch.eager.births import Before, Births
from opstep.frontends.torch.eager.gpu import HANDED, KINDS, Gpus
from opstep.frontends.torch.eager.ops import by_name, tensors_in
from opstep.frontends.torch.eager.places import Made, Node, Place, calls, makers, stack_now
from opstep.runtime.device.cache import Compiler

NAME = "opstep_watcher"
_SOURCES = Path(__file__).parent / "native"
# Of the files the loops over elements need -O3; the rest compiles faster without.
_UNITS = {
    "watcher.cpp": "-O1", "nodes.cpp": "-O1", "gpu.cpp": "-O1", "elements.cpp": "-O3"
}  # fmt: skip
PROBE_S = 300
STALE_S = 3600  # after which nobody is compiling it any more


class Unavailable(Exception):
    """There is no native watcher, for a reason that a person can do something about."""


class Native:
    """The watcher in C++, with the methods of `dispatch.Dispatch`. Raises `Unavailable`."""

    form = "native"

    def __init__(
        self, births: Births, sinks: Any, waits: bool = False, looks: bool = True,
        records: Any = None,
    ):  # fmt: skip
        """`waits`: on a GPU every look waits for its op, so elements are there as on a CPU;
        `records`: gets what runs, see `records.Records`.
        """
        self._module: Any = load()
        self._waits, self.looks, self._records = waits, looks, records
        self.take_ran, self.values = self._module.take_ran, self._module.values
        self.gpus = Gpus(self._module, births, sinks)
        self.births = births
        self.sinks = sinks
        self.is_active = False
        self._ops_before = 0
        self.push, self.updating = self._module.push, self._module.updating
        self.level = self._module.level
        self.pop, self.within = self._module.pop, self._module.within
        self.sizes = self._module.sizes
        self.distrust = self._module.distrust  # what is compiled writes memory that was seen

    def start(self) -> None:
        births = self.births
        births.on_bad = lambda storage, is_bad: self._module.set_bad(storage, is_bad)
        births.empty_at = self._module.empty_at
        births.made_by = self.made_by
        births.made_at = lambda node: self._made(Node(node._sequence_nr(), 0, node.name()))
        gpus = self.gpus
        self._module.start(
            self._gave, births.healed, self.sinks.read, self.sinks.tested, self._loss,
            gpus.set_up, gpus.full, gpus.came_from_host, self._waits, self.looks,
        )  # fmt: skip
        if (records := self._records) is not None:
            self._module.record(records.met, records.read, records.gave)
        self.is_active = True
        self._open_higher_order_ops()
        self.enter()

    def enter(self) -> None:
        """Watches the thread that calls this, to its end."""
        if self.is_active:
            self._module.enter(True)

    def stop(self) -> None:
        self.is_active = False
        self.gpus.forget()
        self.ops, self.unseen = self._module.counts()
        self._module.stop()
        self._module.enter(False)

    silence = stop  # other threads go on unwatched

    def take_over(self, other: Any) -> None:
        """Goes on where the watcher in Python was."""
        self.start()
        for module in other.modules_now():
            self._module.push(module)
        for storage in list(self.births.held):
            self._module.set_bad(storage, True)
        self._ops_before = other.counts()[0]

    def counts(self) -> tuple[int, dict[str, int]]:
        """The number of ops that ran; results that were not looked at, by their kind."""
        ops, unseen = self._module.counts() if self.is_active else (self.ops, self.unseen)
        return ops + self._ops_before, unseen

    def place(self) -> Place:
        module, number, thread, name, is_updating = self._module.here()
        return Place(stack_now(2), module, Node(number, thread, name), is_updating)

    def bad_among(self, tensors: Sequence[torch.Tensor], gradients: bool = False) -> list[int]:
        """See `dispatch.Dispatch.bad_among`."""
        return self._module.bad_among(list(tensors), gradients)

    def note(self, tensors: Sequence[torch.Tensor], sink: str, gradients: bool = False) -> bool:
        """Values that matter. Whether a GPU's are asked for when their flags are read."""
        self._module.log_sinks(list(tensors), gradients, KINDS.index(sink))
        return not self._waits

    def step_done(self, wait: bool = False) -> None:
        """An optimizer has made a step; with `wait` all flags of a GPU are read."""
        self.gpus.end(wait=True) if wait else self.gpus.step_done()

    def made_by(self, place: Place) -> tuple[Made, ...]:
        """See `places.makers`."""
        return makers(place.node, self._made)

    def _made(self, node: Node) -> Made | None:
        """The op that made a node; of thread 0, in this thread."""
        made = self._module.made(node.thread, node.number, node.is_late)
        if made is None:
            return None
        stack, module, number, thread, op = made
        return Made(stack, module, Node(number, thread), op.partition("::")[2])

    def _loss(self, t: torch.Tensor) -> None:
        """`ones_like` is called; of a loss by its backward."""
        if calls(stack_now(), "_make_grads"):
            self.sinks.loss(t)

    def _gave(self, name, overload, arguments, result, index, level, before, written) -> None:
        old: dict[int, list[Before]] = {}
        for argument, was, copy in before:
            old.setdefault(argument, []).append(Before(was, copy))
        given = [t for a in arguments for t in tensors_in(a) if t.is_cuda and not self._waits]
        if given and self._was_handed(given, result):
            return
        op = by_name(name, overload)
        self.births.gave(op, arguments, result, index, level, old, written)

    def _was_handed(self, given: list[torch.Tensor], result: torch.Tensor) -> bool:
        """Whether what is bad in the host's memory was so on a GPU, whose flags are read now."""
        self.gpus.handed = []
        self.note(given, HANDED)
        self.gpus.end(wait=True)
        if births := self.gpus.handed:
            self.births.hold(result, births)
        return bool(births)

    def _open_higher_order_ops(self) -> None:
        """Higher-order ops raise where a key is included that they have no rule for."""
        ops: Any = torch._ops
        key = torch._C._dispatch_key_parse("Fake")  # pyright: ignore
        registry, create = ops._higher_order_ops, ops.HigherOrderOperator.__init__

        def let_through(op: Any) -> None:
            op.non_fallthrough_keys = op.non_fallthrough_keys.remove(key)

        if getattr(create, "__module__", "") == __name__:
            return
        for op in list(registry.values()):
            let_through(op)

        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            create(self, *args, **kwargs)
            let_through(self)

        init.__module__ = __name__
        ops.HigherOrderOperator.__init__ = init


# --- building -------------------------------------------------------------------------------------


def load() -> Any:
    """The compiled module. Raises `Unavailable` where it was not built, or PyTorch has begun to use
    its key.
    """
    file = path()
    if not file.exists():
        missing = what_is_missing()
        why = f"it takes {missing}" if missing else "compiling it takes a minute, meanwhile"
        raise Unavailable(f"the native watcher is not there: {why}")
    module = sys.modules.get(NAME)
    if module is None:
        spec = importlib.util.spec_from_file_location(NAME, file)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules[NAME] = module
    try:
        module.register()
    except RuntimeError as error:
        raise Unavailable(f"PyTorch {torch.__version__} does not let it in: {error}") from None
    return module


@cache
def path() -> Path:
    """Of the compiled file: another PyTorch, Python, machine or source has another."""
    sources = b"".join(p.read_bytes() for p in sorted(_SOURCES.iterdir()) if p.is_file())
    abi = torch._C._GLIBCXX_USE_CXX11_ABI
    parts = (
        torch.__version__,
        torch.__file__,
        abi,
        sys.implementation.cache_tag,
        os.uname().machine,
    )
    digest = hashlib.sha256(f"{parts} {_flags()}".encode() + sources).hexdigest()[:24]
    return Compiler.cache_folder() / f"watcher-{digest}.so"


def what_is_missing() -> str:
    """Names what compiling takes and is not there; "" where nothing is missing."""
    if shutil.which(_compiler()) is None:
        return f"{_compiler()}, a C++ compiler (CXX names another)"
    include = Path(sysconfig.get_paths()["include"])
    if not (include / "Python.h").exists():
        return f"Python's headers (Python.h in {include})"
    return ""


def build(gently: bool = False) -> None:
    """Compiles it, if it is not there, and tries it in another process. `gently`: at low priority.
    Raises `Unavailable`.
    """
    file = path()
    if file.exists():
        return
    if missing := what_is_missing():
        raise Unavailable(f"it takes {missing}")
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        made = Path(folder) / f"{NAME}.so"
        _compile(made, ["nice", "-n", "19"] if gently and shutil.which("nice") else [])
        probe = [sys.executable, "-c", _PROBE, str(made)]
        tried = subprocess.run(probe, capture_output=True, text=True, timeout=PROBE_S)
        if tried.returncode:
            said = (tried.stderr.strip().splitlines() or [f"exit code {tried.returncode}"])[-1]
            raise Unavailable(f"it does not work with PyTorch {torch.__version__}: {said}")
        os.replace(made, file)


def build_in_background() -> None:
    """Compiles it in a process of its own, which outlives this one; one at a time."""
    lock = path().with_suffix(".building")
    lock.parent.mkdir(parents=True, exist_ok=True)
    try:
        if lock.exists() and time.time() - lock.stat().st_mtime > STALE_S:
            lock.unlink()
        os.close(os.open(lock, os.O_CREAT | os.O_EXCL))
    except OSError:  # another process is at it, or nothing can be kept
        return
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, sys.path)))
    words = [sys.executable, "-c", _BACKGROUND, str(lock)]
    quiet = subprocess.DEVNULL
    subprocess.Popen(
        words, env=environment, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True
    )


_BACKGROUND = """
import os, sys
from opstep.frontends.torch.eager import native
try:
    native.build(gently=True)
finally:
    os.unlink(sys.argv[1])
"""

_PROBE = """
import importlib.util, sys
import torch
spec = importlib.util.spec_from_file_location("opstep_watcher", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module.register()
found = []
note = lambda *given: found.append(given[0])
module.start(*[note] * 8, False, True)
module.enter(True)
torch.zeros(2).log_()
assert found == ["aten::log_"], found
"""


def _compiler() -> str:
    return os.environ.get("CXX", "g++")


def _flags() -> list[str]:
    include = Path(torch.__file__).parent / "include"
    paths = [include, include / "torch/csrc/api/include", sysconfig.get_paths()["include"]]
    abi = int(torch._C._GLIBCXX_USE_CXX11_ABI)
    return [
        "-std=c++20", "-fPIC", "-fvisibility=hidden", f"-D_GLIBCXX_USE_CXX11_ABI={abi}",
        *(f"-isystem{p}" for p in paths),
    ]  # fmt: skip


def _compile(target: Path, nice: list[str]) -> None:
    """All files at once. Raises `Unavailable`."""
    objects, running = [], []
    for name, level in _UNITS.items():
        made = target.with_name(f"{name}.o")
        words = [_compiler(), "-c", str(_SOURCES / name), level, *_flags(), "-o", str(made)]
        objects.append(str(made))
        running.append(_started([*nice, *words]))
    for process in running:
        _ended(process)
    lib = Path(torch.__file__).parent / "lib"
    libraries = ("torch_python", "torch_cpu", "torch", "c10")
    words = [_compiler(), "-shared", *objects, f"-L{lib}", *(f"-l{n}" for n in libraries)]
    _ended(_started([*nice, *words, "-o", str(target)]))


def _started(words: list[str]) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(words, stdout=pipe, stderr=subprocess.STDOUT, text=True)


def _ended(process: subprocess.Popen[str]) -> None:
    said, _ = process.communicate()
    if process.returncode:
        errors = [line for line in said.splitlines() if "error" in line] or said.splitlines()[-1:]
        raise Unavailable(f"{_compiler()} fails: {errors[0] if errors else process.returncode}")
