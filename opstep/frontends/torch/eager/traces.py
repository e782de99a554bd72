"""Takes down what each op of a script is given and gives, in a process of its own."""

from __future__ import annotations

import atexit
import importlib
import json
import linecache
import os
import pickle
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook
from torch.utils.data import DataLoader

from opstep.frontends.scripts.script import Leave, Script
from opstep.frontends.torch.eager.births import undispatched
from opstep.frontends.torch.eager.dispatch import Listener
from opstep.frontends.torch.eager.looking import Looks
from opstep.frontends.torch.eager.names import Names
from opstep.frontends.torch.eager.ops import facts_of, positional, tensors_in
from opstep.frontends.torch.eager.places import forward_frames, frames, stack_now
from opstep.frontends.torch.eager.session import Session
from opstep.frontends.torch.eager.steps import AsIs, is_odd, key_of, simple_kernels
from opstep.frontends.torch.sources import Frame

# They give what they were given, perhaps as another type: what is compared is what made it.
_SAME = {"detach", "clone", "alias", "lift_fresh", "lift", "_to_copy", "contiguous"}
_NOTED = (
    (nn.Module, "__init__"), (Optimizer, "__init__"), (LRScheduler, "__init__"),
    (DataLoader, "__init__"), (torch, "manual_seed"), (nn.Module, "train"),
    (nn.Module, "zero_grad"), (Optimizer, "zero_grad"),
)  # fmt: skip
SAMPLE = 4096  # elements that are kept of a tensor beyond the budget
NO_VALUE = -1


class Operand(NamedTuple):
    """`op`, `result`: what made it, an op of before; -1 is none. `value`: see `Trace.values`;
    `cast`: where it was converted to another type on the way.
    """

    op: int
    result: int
    value: int
    cast: Frame | None = None


class Slot(NamedTuple):
    """A tensor among the arguments of an op: which of its operands."""

    operand: int


class Op(NamedTuple):
    """`name`: of the schema, with the overload; `arguments`: all, in its order; `results`: values,
    see `Trace.values`, and `shapes` theirs.
    """

    name: tuple[str, str]
    phase: str
    step: int
    module: str
    frames: list[Frame]
    arguments: list[Any]
    operands: list[Operand]
    results: list[int]
    shapes: list[tuple[int, ...]]
    random: bool

    @property
    def text(self) -> str:
        return linecache.getline(*self.frames[0][:2]).strip() if self.frames else ""


class Value(NamedTuple):
    """The place of its elements in the file. `every`: only each n-th is there."""

    at: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    every: int


class Built(NamedTuple):
    """A module of PyTorch's, an optimizer, a schedule, a loader: where it was made, and its
    settings. Also a call that no op stands for (`train`, `zero_grad`), and its arguments.
    """

    kind: str
    frame: Frame
    settings: dict[str, Any]


class Trace(NamedTuple):
    ops: list[Op]
    values: list[Value]
    built: list[Built]
    code: int  # the script's exit code
    steps: int


class Tracer(Listener):
    """A `dispatch.Listener`. Ends the script after so many steps of optimizers."""

    def __init__(self, folder: Path, steps: int, budget: int):
        self.ops: list[Op] = []
        self.steps = 0
        self._most, self._left = steps, budget
        self._folder, self._file = folder, (folder / "values.bin").open("wb")
        self._values: list[Value] = []
        self._made: dict[Any, Operand] = {}  # by the key of a tensor
        self._wrote: dict[int, Operand] = {}  # by storage: who wrote last
        self._storages: dict[int, StorageWeakRef] = {}  # their addresses stay theirs
        self._modules: list[int] = []  # of the ops
        self._built: list[tuple[str, Frame, Any, dict[str, Any] | None]] = []
        self._given: list[Operand] = []
        self.session: Any = None

    # --- ops ---

    def runs(self, op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        given = positional(op, tuple(args), kwargs)
        self._given = [self._operand(t) for a in given for t in tensors_in(a) if not is_odd(t)]

    def ran(self, op: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> None:
        facts = facts_of(op)
        given = positional(op, tuple(args), kwargs)
        written = [t for k in facts.writes if k < len(given) for t in tensors_in(given[k])]
        results = [t for t in written or tensors_in(result) if not is_odd(t)]
        if not results or getattr(op, "_schema", None) is None:
            return
        place = self.session.watcher.place()
        own = frames(place.stack)
        if place.phase == "backward":
            own = forward_frames(place.stack, self.session.watcher.made_by(place)) or own
        floats = all(t.is_floating_point() for t in (*results, *tensors_in(args[:1])))
        if facts.name in _SAME and floats and self._given:
            one = self._given[0]
            if results[0].dtype != args[0].dtype:
                one = one._replace(value=self._keep(results[0]), cast=own[0] if own else None)
            self._note(results[0], one, False)
            self._given, results = [], []  # an op that nothing is compared of
        values = [NO_VALUE if facts.empty else self._keep(t) for t in results]
        for k, (t, value) in enumerate(zip(results, values, strict=True)):
            self._note(t, Operand(len(self.ops), k, value), bool(written))
        self._modules.append(place.module)
        arguments = self._arguments(op, given)
        name, shapes = (op._schema.name, op._overloadname), [tuple(t.shape) for t in results]
        step, operands = self.steps, self._given
        self.ops.append(
            Op(name, place.phase, step, "", own, arguments, operands, values, shapes, facts.random)
        )

    def _arguments(self, op: Any, given: Sequence[Any]) -> list[Any]:
        """Those left out as well."""
        slots = iter(range(len(self._given)))

        def plain(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                return None if is_odd(value) else Slot(next(slots))
            if isinstance(value, list | tuple):
                return [plain(v) for v in value]
            return None if isinstance(value, torch.Generator) else value

        defaults = [a.default_value for a in op._schema.arguments[len(given) :]]
        return list(map(plain, [*given, *defaults]))

    def _note(self, t: torch.Tensor, made: Operand, is_write: bool) -> None:
        storage = t.untyped_storage()
        self._storages.setdefault(storage._cdata, StorageWeakRef(storage))
        self._made[key_of(t)] = made
        if is_write:
            self._wrote[storage._cdata] = made

    def _operand(self, t: torch.Tensor) -> Operand:
        """The maker of a tensor; one that no op has made is kept as it is now."""
        made, wrote = self._made.get(key_of(t)), self._wrote.get(t.untyped_storage()._cdata)
        if wrote is not None and (made is None or wrote.op > made.op):
            return wrote._replace(value=NO_VALUE) if wrote != made else wrote
        if made is None:
            made = Operand(-1, 0, self._keep(t))
            self._note(t, made, False)
        return made

    def _keep(self, t: torch.Tensor) -> int:
        held = t.detach().cpu()
        size = held.numel() * held.itemsize
        every = 1 if size <= self._left else max(1, held.numel() // SAMPLE)
        self._left -= size if every == 1 else 0
        held = held.resolve_conj().resolve_neg().contiguous().reshape(-1)[::every].contiguous()
        self._values.append(Value(self._file.tell(), t.dtype, tuple(t.shape), every))
        held.view(torch.uint8).numpy().tofile(self._file)
        return len(self._values) - 1

    # --- the script ---

    def run(self, script: Script) -> None:
        self.session = Session(lambda finding: None, native=False, listeners=[self])
        code = 0
        with simple_kernels(), ExitStack() as hooks:
            hooks.callback(register_optimizer_step_post_hook(self._ended).remove)
            for owner, name in _NOTED:
                self._hook(hooks, owner, name)
            with suppress(Leave), self.session:
                code = script.run(AsIs())
        self._file.close()
        names = Names(self.session.hooks.optimizers)
        ops = [
            o._replace(module=names.module(m)) for o, m in zip(self.ops, self._modules, strict=True)
        ]
        built = [
            Built(kind, frame, _settings(one) if of is None else of)
            for kind, frame, one, of in self._built
        ]
        trace = Trace(ops, self._values, built, code, self.steps)
        (self._folder / "trace.pickle").write_bytes(pickle.dumps(trace))

    def _hook(self, hooks: ExitStack, owner: Any, name: str) -> None:
        """Notes what the script makes or calls, and its line."""
        before = getattr(owner, name)

        def noted(*args: Any, **kwargs: Any) -> Any:
            own, made = frames(stack_now(2)), name == "__init__"
            kind = type(args[0]).__name__ if made else name
            last = self._built[-1] if self._built else None
            is_inner = last is not None and last[:2] == (kind, own[0] if own else None)
            if own and (type(args[0]).__module__.startswith("torch.") or not (made or is_inner)):
                given = {
                    "arguments": _plain([a for a in args if a is not args[0] or owner is torch])
                }
                self._built.append((kind, own[0], args[0], None if made else given | kwargs))
            return before(*args, **kwargs)

        setattr(owner, name, noted)
        hooks.callback(setattr, owner, name, before)

    def _ended(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.steps += 1
        if self.steps == self._most:
            self.session.leave()
            raise Leave


def _settings(one: Any) -> dict[str, Any]:
    known = one.defaults if isinstance(one, Optimizer) else vars(one)
    plain = {k: _plain(v) for k, v in known.items() if not k.startswith("_") and k != "training"}
    if isinstance(one, nn.Module):
        shapes = {n: p if p is None else list(p.shape) for n, p in one._parameters.items()}
        plain |= shapes
    if isinstance(one, DataLoader):
        plain["sampler"] = type(one.sampler).__name__
    return {k: v for k, v in plain.items() if v is not Ellipsis}


def _plain(value: Any) -> Any:
    """An argument that can be compared in another process; `Ellipsis` for what cannot."""
    if value is None or isinstance(value, bool | int | float | str | torch.dtype):
        return value
    if isinstance(value, list | tuple) and Ellipsis not in (found := list(map(_plain, value))):
        return found
    return Ellipsis


def main(steps: str, budget: str, jobs: str) -> None:
    """Each job, a folder and a script with its arguments, runs in a fork of this process, which
    leaves `trace.pickle` and `values.bin` in the folder.
    """
    importlib.import_module("torch._dynamo")  # which optimizers use: once for all
    Looks().level(torch.ones(1))  # likewise compiled
    for folder, name, *arguments in json.loads(jobs):
        if not (child := os.fork()):
            try:
                with undispatched():
                    tracer = Tracer(Path(folder), int(steps), int(budget))
                tracer.run(Script.find(name, arguments))
                atexit._run_exitfuncs()
            except Exception as error:
                sys.excepthook(type(error), error, error.__traceback__)
            finally:
                sys.stdout.flush()
                os._exit(0)  # Python would take seconds to free what it has imported
        os.waitpid(child, 0)
