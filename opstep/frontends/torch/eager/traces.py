"""Takes down what each op of a script is given and gives, in a process of its own."""

from __future__ import annotations

import atexit
import importlib
import json
import linecache
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.data import DataLoader

from opstep.frontends.replacing import replaced
from opstep.frontends.scripts.script import Script
from opstep.frontends.torch.eager.births import undispatched
from opstep.frontends.torch.eager.looking import Looks
from opstep.frontends.torch.eager.names import Names, modules
from opstep.frontends.torch.eager.ops import READS, facts_of, positional, tensors_in
from opstep.frontends.torch.eager.places import Stack, frames, is_library, is_own, stack_now
from opstep.frontends.torch.eager.steps import Calls, is_odd, key_of
from opstep.frontends.torch.sources import Frame
from opstep.runtime.ir.errors import InputError

# They give what they were given, perhaps as another type: what is compared is what made it.
_SAME = {"detach", "clone", "alias", "lift_fresh", "lift", "_to_copy", "contiguous"}
_NOTED = (
    (nn.Module, "__init__"), (Optimizer, "__init__"), (LRScheduler, "__init__"),
    (DataLoader, "__init__"), (torch, "manual_seed"), (nn.Module, "train"),
    (nn.Module, "zero_grad"), (Optimizer, "zero_grad"),
)  # fmt: skip
_BUILDING = ("torch.nn.", "torch.optim.", "torch.utils.data.")
_LOADERS = os.path.dirname(torch.utils.data.__file__)
_COMPILED = os.path.join(os.path.dirname(torch.__file__), "_functorch", "_aot_autograd")
_CLOSE = {"pin_memory", "non_blocking"}  # arguments that change no result
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


class Op(NamedTuple):
    """`module`: the innermost one, or the parameter that is written; `frames`: the innermost first;
    `settings`: of the arguments those that are no tensors; `results`: values, and `shapes` theirs;
    `uses`: what it depends on, see `Built`.
    """

    name: str
    phase: str
    step: int
    module: str
    frames: list[Frame]
    settings: dict[str, Any]
    operands: list[Operand]
    results: list[int]
    shapes: list[list[int]]
    uses: list[int | str]

    @property
    def frame(self) -> Frame | None:
        return self.frames[0] if self.frames else None

    @property
    def text(self) -> str:
        return text_of(self.frame)


class Value(NamedTuple):
    """The place of its elements in the file. `every`: only each n-th is there."""

    at: int
    dtype: str
    shape: list[int]
    every: int


class Built(NamedTuple):
    """A module of PyTorch's, an optimizer, a schedule, a loader: where it was made, and its
    settings. Also a call that no op stands for (`train`, `zero_grad`), and its arguments. `used`:
    the ops that use it have this among their `uses`.
    """

    kind: str
    frame: Frame
    settings: dict[str, Any]
    used: int | str


class Trace:
    """As `Tracer` has left it in a folder."""

    def __init__(self, folder: str, script: str, *arguments: str):
        file = Path(folder, "trace.json")
        if not file.exists():
            raise InputError(f"{script} ended before its ops could be compared")
        found = json.loads(file.read_text())
        self.code, self.steps, self.files = found["code"], found["steps"], found["files"]
        self.values = [Value(*v) for v in found["values"]]
        self.left = set(map(tuple, found["left"]))  # what wrote parameters and such last
        self.built = [Built(row[0], Frame(*row[1]), *row[2:]) for row in found["built"]]
        self.ops = [Op(*row) for row in found["ops"]]
        for k, op in enumerate(self.ops):
            rows: list[Any] = op.operands
            operands = [Operand(a, b, c, Frame._make(d) if d else None) for a, b, c, d in rows]
            own = [Frame._make(f) for f in op.frames]
            self.ops[k] = op._replace(frames=own, operands=operands)
        data = Path(folder, "values.bin")
        self._data = np.memmap(data, np.uint8, "r") if data.stat().st_size else np.empty(0, "u1")

    def value(self, k: int) -> torch.Tensor | None:
        """The elements that were kept; None where there are none."""
        if k == NO_VALUE:
            return None
        at, name, shape, every = self.values[k]
        dtype: torch.dtype = getattr(torch, name.removeprefix("torch."))
        count = -(-math.prod(shape) // every)
        if not count:
            return torch.empty(shape, dtype=dtype)
        held = torch.from_numpy(self._data[at : at + count * dtype.itemsize].copy()).view(dtype)
        return held.reshape(shape) if every == 1 else held


class Tracer(Calls):
    """A `dispatch.Listener`. Ends the script after so many steps of optimizers."""

    def __init__(self, folder: Path, steps: int, budget: int):
        super().__init__()
        self._most, self._left = steps, budget
        self._folder, self._file = folder, (folder / "values.bin").open("wb")
        self._ops: list[Op] = []
        self._values: list[Value] = []
        self._made: dict[Any, Operand] = {}  # by the key of a tensor
        self._wrote: dict[int, Operand] = {}  # by storage: who wrote last
        self._names: list[
            tuple[int, int]
        ] = []  # of the ops: a module, and a storage that is written
        self._built: list[tuple[Any, ...]] = []
        self._given: list[Operand] = []
        self._optimizer: Any = None  # that is at its step, or was last

    # --- ops ---

    def runs(self, op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        given = positional(op, tuple(args), kwargs)
        self._given = [self._operand(t) for a in given for t in tensors_in(a) if not is_odd(t)]

    def ran(self, op: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> None:
        facts = facts_of(op)
        given = positional(op, tuple(args), kwargs)
        written = [t for k in facts.writes if k < len(given) for t in tensors_in(given[k])]
        found = (t for t in (*tensors_in(result), *written) if not is_odd(t))
        results = list({key_of(t): t for t in found}.values())
        is_left_out = facts.name == "set_" or not (results or facts.name in READS)
        if is_left_out or getattr(op, "_schema", None) is None:
            return
        if facts.name.endswith("_like"):
            self._given = []  # whose elements it does not read
        place, own = self.place()
        if _is_within(place.stack, _COMPILED):
            return  # what it writes between two ops, nobody sees
        floats = all(t.is_floating_point() for t in (*results, *tensors_in(args[:1])))
        if facts.name in _SAME and floats and self._given:
            one = self._given[0]
            if results[0].dtype != args[0].dtype:
                one = one._replace(value=self._keep(results[0]), cast=own[0] if own else None)
            self._note(results[0], one, False)
            return
        uses = [id(m) for m in self.session.watcher.modules_now()]
        uses += (
            [place.phase] + ["random"] * facts.random + ["data"] * _is_within(place.stack, _LOADERS)
        )
        uses += [id(self._optimizer)] * (place.phase == "update")
        schema = op._schema.arguments
        defaults = [a.default_value for a in schema[len(given) :]]
        settings = {a.name: _plain(v) for a, v in zip(schema, [*given, *defaults], strict=True)}
        settings = {k: v for k, v in settings.items() if v is not ... and k not in _CLOSE}
        values = [NO_VALUE if facts.empty else self._keep(t) for t in results]
        self._add(str(op), place, own, settings, results, values, uses, bool(written))

    def _add(self, name, place, own, settings, results, values, uses, is_write) -> None:
        for k, (t, value) in enumerate(zip(results, values, strict=True)):
            self._note(t, Operand(len(self._ops), k, value), is_write)
        self._names.append((place.module, self.keep(results[-1]) if is_write else 0))
        shapes = [list(t.shape) for t in results]
        self._ops.append(
            Op(name, place.phase, self.steps, "", own, settings, self._given, values, shapes, uses)
        )

    def _note(self, t: torch.Tensor, made: Operand, is_write: bool) -> None:
        storage = self.keep(t)
        self._made[key_of(t)] = made
        if is_write:
            self._wrote[storage] = made

    def _operand(self, t: torch.Tensor) -> Operand:
        """The maker of a tensor; one that no op has made is kept as it is now."""
        made = self._made.get(key_of(t))
        wrote = self._wrote.get(t.untyped_storage()._cdata)
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
        self._values.append(Value(self._file.tell(), str(t.dtype), list(t.shape), every))
        held.view(torch.uint8).numpy().tofile(self._file)
        return len(self._values) - 1

    # --- the script ---

    def ended(self, optimizer: Any) -> bool:
        return self.steps == self._most

    def trace(self, script: Script) -> None:
        """Runs it, and leaves the folder's files."""
        code = self.run(script)
        self._file.close()
        names = Names(self.session.hooks.optimizers)
        ops = [
            o._replace(module=names.module(m) or names.tensors.get(storage, ""))
            for o, (m, storage) in zip(self._ops, self._names, strict=True)
        ]
        built = [
            Built(kind, at, _settings(one) if given is None else given, used)
            for kind, at, one, given, used in self._built
        ]
        known = (getattr(m, "__file__", None) or "" for m in list(sys.modules.values()))
        files = [script.path, *(f for f in known if f and is_own(f) and not is_library(f))]
        left = [o[:2] for storage, o in self._wrote.items() if storage in names.tensors]
        trace = {"ops": ops, "left": left, "values": self._values, "built": built, "code": code,
                 "steps": self.steps, "files": files}  # fmt: skip
        (self._folder / "trace.json").write_text(json.dumps(trace, default=str))

    @contextmanager
    def hooked(self) -> Iterator[None]:
        self.session.hooks.on_compile = lambda: None
        with ExitStack() as hooks, super().hooked():
            register = register_optimizer_step_pre_hook
            hooks.callback(register(lambda o, *_: setattr(self, "_optimizer", o)).remove)
            for owner, name in _NOTED:
                hooks.enter_context(replaced(owner, name, partial(self._noting, owner, name)))
            hooks.enter_context(replaced(torch, "compile", self._compiling))
            yield

    def _noting(self, owner: Any, name: str, before: Callable[..., Any]) -> Callable[..., Any]:
        """Notes what the script makes or calls, and its line."""

        def noted(*args: Any, **kwargs: Any) -> Any:
            own, one, is_made = frames(stack_now(2)), args[0] if args else None, name == "__init__"
            kind = type(one).__name__ if is_made else name
            last = self._built[-1] if self._built else None
            is_inner = last is not None and last[:2] == (kind, own[0] if own else None)
            is_known = type(one).__module__.startswith(_BUILDING) and type(one) is not nn.Module
            if own and (is_known or not (is_made or is_inner)):
                given = [a for a in args if a is not one or owner is torch]
                given = None if is_made else {"arguments": _plain(given)} | _known(kwargs)
                used = {"manual_seed": "random", "zero_grad": "backward"}.get(name, id(one))
                used = "data" if owner is DataLoader else used
                used = id(args[1]) if owner is LRScheduler and len(args) > 1 else used
                self._built.append((kind, own[0], one, given, used))
            return before(*args, **kwargs)

        return noted

    def _compiling(self, before: Callable[..., Any]) -> Callable[..., Any]:
        """Regions that the script compiles run compiled, each as one op."""

        def compiled(model: Any = None, **kwargs: Any) -> Any:
            if model is None:
                return lambda model: compiled(model, **kwargs)
            made = before(model, **kwargs)
            if not isinstance(made, nn.Module):
                return self._region(made)
            made.forward = self._region(made.forward)
            return made

        return compiled

    def _region(self, call: Callable[..., Any]) -> Callable[..., Any]:
        buffers: list[torch.Tensor] = []  # which it may write unseen

        def called(*args: Any, **kwargs: Any) -> Any:
            known = (b for m in modules() for b in m._buffers.values() if b is not None)
            buffers[:] = buffers or known
            given = [t for a in (*args, *kwargs.values()) for t in tensors_in(a)]
            with undispatched():
                operands = [self._operand(t) for t in given]
                versions = [(t, t._version) for t in (*given, *buffers) if not t.is_inference()]
            with _disable_current_modes():
                found = call(*args, **kwargs)
            with undispatched():
                for storage in {self.keep(t) for t, version in versions if t._version > version}:
                    self._wrote.pop(storage, None)
                    self._made = {k: o for k, o in self._made.items() if k[0] != storage}
                if results := tensors_in(found):
                    self._given, (place, own) = operands, self.place()
                    values = [self._keep(t) for t in results]
                    self._add("compiled", place, own, {}, results, values, [], False)
            return found

        return called


def _is_within(stack: Stack, folder: str) -> bool:
    return any(code.co_filename.startswith(folder) for code, _ in stack)


def _settings(one: Any) -> dict[str, Any]:
    known = one.defaults if isinstance(one, Optimizer) else vars(one)
    plain = {k: v for k, v in known.items() if not k.startswith("_") and k != "training"}
    if isinstance(one, nn.Module):
        plain |= {n: p if p is None else list(p.shape) for n, p in one._parameters.items()}
    if isinstance(one, DataLoader):
        plain["sampler"] = type(one.sampler).__name__
    return _known(plain)


def _known(values: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, own in values.items() if (v := _plain(own)) is not ...}


def _plain(value: Any) -> Any:
    """An argument that can be compared in another process; `Ellipsis` for what cannot, and for
    element types: what they change shows in the results.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, torch.Tensor):
        return "a tensor"
    if isinstance(value, complex | torch.Size):
        return str(value)
    if isinstance(value, list | tuple) and ... not in (found := list(map(_plain, value))):
        return found
    return ...


def text_of(frame: Frame | None) -> str:
    return linecache.getline(frame.file, frame.line).strip() if frame else ""


def main(steps: str, budget: str, jobs: str) -> None:
    """Each job, a folder and a script with its arguments, runs in a fork of this process, which
    leaves `trace.json` and `values.bin` in the folder.
    """
    importlib.import_module("torch._dynamo")  # which optimizers use: once for all
    Looks().level(torch.ones(1))  # likewise compiled
    for folder, name, *arguments in json.loads(jobs):
        if not (child := os.fork()):
            try:
                with undispatched():
                    tracer = Tracer(Path(folder), int(steps), int(budget))
                tracer.trace(Script.find(name, arguments))
                atexit._run_exitfuncs()
            except Exception as error:
                sys.excepthook(type(error), error, error.__traceback__)
            finally:
                sys.stdout.flush()
                os._exit(0)  # Python would take seconds to free what it has imported
        os.waitpid(child, 0)
