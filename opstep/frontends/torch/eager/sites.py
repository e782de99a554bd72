"""Names of the ops that a script runs: by the line, the module and the phase that it runs in."""

from __future__ import annotations

import linecache
import os
import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from opstep.frontends.assignments import assignment
from opstep.frontends.scripts.script import executed
from opstep.frontends.torch.dims import DTYPES
from opstep.frontends.torch.eager.figures import can_be_had
from opstep.frontends.torch.eager.names import Names
from opstep.frontends.torch.eager.ops import Facts, tensors_in
from opstep.frontends.torch.eager.places import (
    Made,
    Place,
    current_node,
    forward_frames,
    frames,
    is_engine,
    is_own,
    stack_kept,
)
from opstep.trace.free import OpMet, ResultMet

_CONTAINERS = ("ModuleList", "ModuleDict")  # nobody calls them
_MOST_LOOKS = 64  # for the names of modules: each takes tens of milliseconds


class Sites:
    """`known`: the ops by their numbers; `met`: those that are new, and results that are.

    `graph`: what the run is called; `made_by`, `optimizers`: see `Dispatch`, `Hooks`.
    """

    def __init__(self, graph: str, made_by: Callable[[Place], tuple[Made, ...]], optimizers: Any):
        self.known: list[OpMet] = []
        self.met: list[OpMet] = []
        self.gave: dict[int, tuple[int, int]] = {}  # by address: the op and its result
        self._graph, self._made_by, self._optimizers = graph, made_by, optimizers
        self._numbers: dict[tuple, int] = {}
        self._sites: dict[str, dict[tuple, int]] = {}  # by text, and what else tells them apart
        self._names: Any = None
        self._kinds_of: dict[int, str] = {}  # classes of modules that were called
        self._looks_left = _MOST_LOOKS

    def number(
        self, mode: Any, op: Any, facts: Facts, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> int:
        """Of the op that has run in this thread; see `at`."""
        module = id(mode.modules[-1]) if mode.modules else 0
        place = Place(stack_kept(3), module, current_node(), mode.is_updating)
        key: tuple = (id(op), id(place.stack), module, mode.is_updating)
        if place.node.name and (made := self._made_by(place)):
            key = (*key, place.node.name, id(made[0].stack), made[0].module)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = self.at(op, facts, args, kwargs, mode.modules, place)
        return number

    def at(
        self, op: Any, facts: Facts, args: Sequence[Any], kwargs: dict[str, Any],
        modules: list[Any], place: Place,
    ) -> int:  # fmt: skip
        """Of an op that may have been met here before; -1 of a mark for profilers."""
        if getattr(op, "namespace", "") == "profiler":
            return -1
        own = ((id(c), k) for c, k in place.stack if is_own(c.co_filename) or is_engine(c))
        made = self._made_by(place)
        return self._met(modules, facts, args, kwargs, place, made, next(own, (0, 0)))

    def _met(
        self, modules: list[Any], facts: Facts, args: Any, kwargs: Any, place: Place,
        made: tuple[Made, ...], at: tuple[int, int],
    ) -> int:  # fmt: skip
        """An op of another place, or of a module that was made anew there."""
        phase, name = place.phase, facts.name
        own = forward_frames(place.stack, made) if phase == "backward" else frames(place.stack)
        own = own or frames(place.stack)
        file, line = own[0][:2] if own else ("", 0)
        self._kinds_of.update((id(m), type(m).__name__) for m in modules)
        called = [id(m) for m in modules]
        if phase == "backward" and made and not called:
            called = [made[0].module]
        path = [text for k, key in enumerate(called) if (text := self._module(key, k))]
        module = path[-1] if path else ""
        if phase == "backward" and len(path) == 1:
            path = self._around(module)
        frame = f"{phase}/{module}" if module else phase
        site = f"{frame}/{f'{os.path.basename(file)}:{line} ' if file else ''}{name}"
        alike = self._sites.setdefault(site, {})
        apart = (*at, place.node.name, made[:1] and id(made[0].stack))
        if apart in alike:
            return alike[apart]
        alike[apart], count = len(self.known), len(alike) + 1
        tensors = [t for a in (*args, *kwargs.values()) for t in tensors_in(a)]
        operands, sources, attrs = self._given(facts, args, kwargs)
        met = OpMet(
            len(self.known), name, site if count == 1 else f"{site} #{count}", frame,
            (phase, *path), file, line, linecache.getline(file, line).strip() or name, operands,
            sources, attrs, sum(t.nbytes for t in tensors if t.layout is torch.strided),
            self._graph, 0,
        )  # fmt: skip
        self.known.append(met)
        self.met.append(met)
        return met.op

    def result(self, number: int, k: int, t: torch.Tensor) -> str:
        """The op has given its k-th result, for the first time; what that is called."""
        op = self.known[number]
        found = assignment(op.file, op.line) if op.file else None
        targets = [name for name in found.targets if name] if found else []
        name = targets[0] if len(targets) == 1 else "result"
        name = "grad" if op.levels[0] == "backward" else name
        nbytes = t.numel() * t.element_size()
        result = ResultMet(name, _dtype(t), tuple(t.shape), nbytes)
        at = next((one for one in self.met if one.op == number), None)
        if at is None:  # the op itself is written already
            at = replace(op, results=[], first=k, is_new=False)
            self.met.append(at)
        at.results.append(result)
        at.nbytes += nbytes
        return name

    def _module(self, key: int, depth: int) -> str:
        """Its name now; of one that nobody holds, its class."""
        found = self._names.modules.get(key) if self._names else None
        is_new = found is None or (depth > 0 and not found[0])
        if key and is_new and self._looks_left:
            self._looks_left -= 1
            self._names = Names(self._optimizers)
            self._names.modules.setdefault(key, ("", self._kinds_of.get(key, "")))
        return self._names.module(key) if self._names else ""

    def _around(self, module: str) -> list[str]:
        """The modules that a module is part of, and itself, as far as somebody calls them."""
        callable_ = {n for n, kind in self._names.modules.values() if kind not in _CONTAINERS}
        parts = module.split(".")
        prefixes = [".".join(parts[: k + 1]) for k in range(len(parts))]
        return [p for p in prefixes if p in callable_ or p == module]

    def _given(self, facts: Any, args: Any, kwargs: Any) -> tuple[list, list, dict[str, Any]]:
        """Operands, who gave them, and attributes: see the columns of a workspace."""
        operands, sources = [], []
        attrs = {k: _plain(v) for k, v in kwargs.items() if not tensors_in(v) and v is not None}
        names = (*facts.arguments[: len(args)], *kwargs)
        for argument, name in zip((*args, *kwargs.values()), names, strict=False):
            for t in tensors_in(argument):
                found = self.gave.get(t.data_ptr()) if can_be_had(t) else None
                named = self._names.of(t) if self._names else ""
                operands.append((named or name, f"{_dtype(t)}{list(t.shape)}"))
                sources.append(list(found[:2]) if found and found[0] >= 0 else None)
            if type(argument) in (int, float) and name not in kwargs:
                operands.append((repr(argument), ""))
                sources.append(0)
            elif isinstance(argument, list | tuple | str | bool) and not tensors_in(argument):
                attrs[name] = _plain(argument)
        return operands, sources, attrs


def own_frame() -> types.FrameType | None:
    """The innermost frame that is a person's, or the engine's."""
    frame = sys._getframe(1)
    while frame is not None and (code := frame.f_code) is not executed.__code__:
        if is_own(code.co_filename) or is_engine(code):
            return frame
        frame = frame.f_back
    return None


def _dtype(t: torch.Tensor) -> str:
    own = DTYPES.get(t.dtype)
    return own.name if own else str(t.dtype).removeprefix("torch.")


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value if isinstance(value, int | float | str | bool) else str(value)
