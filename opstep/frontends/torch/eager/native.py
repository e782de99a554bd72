"""Watches ops by C++, compiled once for each PyTorch and kept: see `native/watcher.cpp`."""

from __future__ import annotations

import sysconfig
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from opstep.frontends.torch.eager.births import Before, Births
from opstep.frontends.torch.eager.dispatch import Asked, Wants
from opstep.frontends.torch.eager.gpu import HANDED, KINDS, Gpus
from opstep.frontends.torch.eager.ops import by_name, tensors_in
from opstep.frontends.torch.eager.places import Made, Node, Place, calls, makers, stack_now
from opstep.runtime.device.extension import Extension, Unavailable, what_is_missing

NAME = "opstep_watcher"
_SOURCES = Path(__file__).parent / "native"
# Of the files the loops over elements need -O3; the rest compiles faster without.
_UNITS = {
    "watcher.cpp": "-O1", "nodes.cpp": "-O1", "gpu.cpp": "-O1", "elements.cpp": "-O3"
}  # fmt: skip


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
        self._waits, self._looks, self._records = waits, looks, records
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

    @property
    def looks(self) -> bool:
        return self._looks

    @looks.setter
    def looks(self, value: bool) -> None:
        self._looks = value
        self._module.looks(value)

    def ask(self, wants: Wants | None, asked: Asked | None, has_composites: bool = False) -> None:
        """See `dispatch.Dispatch.ask`. `has_composites`: whether some are wanted."""
        self._module.ask(wants, asked, has_composites)

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
        open_higher_order_ops()
        self.enter()

    def enter(self) -> None:
        """Watches the thread that calls this, to its end."""
        if self.is_active:
            self._module.enter(True)

    def stop(self) -> None:
        self.is_active = False
        self.ask(None, None)
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


def open_higher_order_ops() -> None:
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
    if not path().exists():
        missing = what_is_missing()
        why = f"it takes {missing}" if missing else "compiling it takes a minute, meanwhile"
        raise Unavailable(f"the native watcher is not there: {why}")
    module = _extension().load()
    try:
        module.register()
    except RuntimeError as error:
        raise Unavailable(f"PyTorch {torch.__version__} does not let it in: {error}") from None
    return module


def path() -> Path:
    """Of the compiled file: another PyTorch, Python, machine or source has another."""
    return _extension().path


def build(gently: bool = False) -> None:
    """Compiles it, see `Extension.build`."""
    _extension().build(gently)


def build_in_background() -> None:
    """Compiles it in a process of its own, see `Extension.build_in_background`."""
    _extension().build_in_background(_BACKGROUND)


@cache
def _extension() -> Extension:
    root, abi = Path(torch.__file__).parent, int(torch._C._GLIBCXX_USE_CXX11_ABI)
    include = root / "include"
    paths = [include, include / "torch/csrc/api/include", sysconfig.get_paths()["include"]]
    # Classes of PyTorch's have fewer members with NDEBUG, with which it is compiled.
    flags = ["-fPIC", "-fvisibility=hidden", f"-D_GLIBCXX_USE_CXX11_ABI={abi}", "-DNDEBUG"]
    libraries = (f"-l{n}" for n in ("torch_python", "torch_cpu", "torch", "c10"))
    return Extension(
        NAME, "watcher", _SOURCES, _UNITS,
        flags=[*flags, *(f"-isystem{p}" for p in paths)],
        libraries=[f"-L{root / 'lib'}", *libraries],
        stands_on=(torch.__version__, torch.__file__, abi), probe=_PROBE,
        works_with=f"PyTorch {torch.__version__}",
    )  # fmt: skip


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
