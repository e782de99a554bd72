"""Keeps all ops of one step of a script's optimizer, with what they read that no op of it made."""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, NoReturn

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook
from torch.utils._python_dispatch import _disable_current_modes

from opstep.frontends.missing import Missing
from opstep.frontends.replacing import replaced
from opstep.frontends.scripts.script import Leave, Script
from opstep.frontends.torch.autograd import simple_kernels
from opstep.frontends.torch.drawing import SHAPED
from opstep.frontends.torch.eager.dispatch import Listener
from opstep.frontends.torch.eager.names import Names
from opstep.frontends.torch.eager.ops import facts_of, positional, tensors_in
from opstep.frontends.torch.eager.places import Place, calls, forward_frames, frames, is_own
from opstep.frontends.torch.eager.session import Session
from opstep.frontends.torch.errors import OF_DATA, ImportFailed
from opstep.frontends.torch.sources import Frame
from opstep.runtime.ir.diagnostics import OpstepError
from opstep.runtime.ir.wording import Wording, Words, in_python

# Their results are inputs. Those of other random ops, such as attention, depend on data as well.
_DRAWING = SHAPED | {
    "bernoulli", "normal", "random", "poisson", "multinomial", "binomial", "_standard_gamma",
    "native_dropout",
}  # fmt: skip
_INDEXED = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}
_DROPPED = {"_record_function_enter_new", "_record_function_exit"}  # marks of profilers


class Ref(NamedTuple):
    """A tensor that an op was given or gave, by its number: views of one memory have several."""

    number: int


class Call(NamedTuple):
    """One op. `results`: its tensors, in order; `drawn`: those that are read again in place of
    calling it, of random ones and of sizes that depend on data.
    """

    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: tuple[Ref, ...]
    frames: list[Frame]
    is_backward: bool
    drawn: tuple[Ref, ...] = ()


class Leaf(NamedTuple):
    """A tensor that the step reads and did not make. `kind`: param, state or input."""

    ref: Ref
    value: torch.Tensor
    name: str
    kind: str
    is_written: bool = False


class Calls(Listener):
    """Takes down what a script runs, to the end of a step of its optimizers."""

    def __init__(self) -> None:
        self.session: Any = None
        self.steps = 0  # of optimizers that have ended
        self._storages: dict[int, StorageWeakRef] = {}  # their addresses stay theirs
        self._lines: dict[tuple[int, ...], list[Frame]] = {}  # by stacks that are kept

    @abstractmethod
    def ended(self, optimizer: Any) -> bool:
        """A step of an optimizer has ended; gives whether the script is to end."""

    @contextmanager
    def hooked(self) -> Iterator[None]:
        """While the block lasts, ends of steps are seen."""
        hook = register_optimizer_step_post_hook(self._ended)
        try:
            yield
        finally:
            hook.remove()

    def run(self, script: Script, words: Words = in_python) -> int:
        """The exit code of the script; 0 where it was ended."""
        self.session = Session(lambda finding: None, native=False, listeners=[self])
        with simple_kernels(), self.session, self.hooked(), suppress(Leave):
            return script.run(AsIs(), words, lambda error: self.over())
        return 0

    def over(self) -> None:
        """The script is, and its globals are still there."""

    def _ended(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.steps += 1
        with _disable_current_modes():
            is_last = self.ended(optimizer)
        if is_last:
            self.session.leave()
            raise Leave

    def place(self) -> tuple[Place, list[Frame]]:
        """Of the op at hand: of a backward's, the frames are those of its forward's op."""
        watcher = self.session.watcher
        place = watcher.place()
        made = watcher.made_by(place) if place.phase == "backward" else ()
        key = tuple(id(s) for s in (place.stack, *(m.stack for m in made)))
        if (own := self._lines.get(key)) is None:
            own = forward_frames(place.stack, made) if place.phase == "backward" else []
            own = self._lines[key] = own or frames(place.stack)
        return place, own

    def keep(self, t: torch.Tensor) -> int:
        """The address of its storage, which is no other's from now on."""
        storage = t.untyped_storage()
        self._storages.setdefault(storage._cdata, StorageWeakRef(storage))
        return storage._cdata


class Recorder(Calls):
    """Keeps step `step` of the optimizers, or of each the one at hand: what runs after the step
    before has ended. The first begins when an optimizer is made, not with what makes parameters;
    the last may be what a script runs after its optimizers, or without any.
    """

    def __init__(self, step: int | None = None):
        super().__init__()
        self.step = step
        self.calls: list[Call] = []
        self.leaves: list[Leaf] = []
        self.outputs: dict[str, Ref] = {}  # what outlives the step, by name
        self.is_complete = False
        self.failed: ImportFailed | None = None  # why the one at hand cannot be kept
        self._numbers: dict[Any, int] = {}
        self._own: dict[int, set[Any]] = {}  # keys of the leaves, by storage
        self._whole: set[int] = set()  # storages of leaves that hold nothing else
        self._written: set[int] = set()  # storages of leaves
        self._losses: list[Ref] = []
        self._ends: dict[Ref, None] = {}  # floats that no op has made floats of

    @contextmanager
    def hooked(self) -> Iterator[None]:
        with super().hooked(), replaced(Optimizer, "__init__", self._making):
            yield

    def _making(self, made: Any) -> Any:
        def init(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            made(optimizer, *args, **kwargs)
            if not self.steps:
                self._clear()

        return init

    def _clear(self) -> None:
        self.failed = None
        for kept in (self.calls, self.leaves, self.outputs, self._numbers, self._storages,
                     self._own, self._whole, self._written, self._losses, self._ends):  # fmt: skip
            kept.clear()

    def ended(self, optimizer: Any) -> bool:
        if self.step is None:
            self._clear()
        elif self.steps > self.step:
            self.finish()
        return self.is_complete

    def over(self) -> None:
        if self.calls and self.steps == self.step:
            self.finish(is_over=False)

    @property
    def _is_on(self) -> bool:
        return self.failed is None and not self.is_complete and self.step in (None, self.steps)

    # --- ops ---

    def runs(self, op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """It is about to: what it reads is as it was."""
        if self._is_on:
            with self._refusing():
                self._reads(op, args, kwargs)

    def ran(self, op: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> None:
        facts = facts_of(op)
        if facts.name in _DROPPED or not (facts.writes or tensors_in(result)):
            return  # a number: what Python does with it is in what follows
        if self._is_on:
            with self._refusing():
                self._gives(op, args, kwargs, tensors_in(result))

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        """The script goes on without the step at hand, if none was asked for."""
        try:
            yield
        except ImportFailed as error:
            if self.step is not None:
                raise
            self.failed = error

    def _reads(self, op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        facts = facts_of(op)
        given = positional(op, tuple(args), kwargs)
        operands = [t for a in given for t in tensors_in(a)]
        if getattr(op, "_schema", None) is None:
            self._refuse(op, "it calls other functions")
        self._check_strided(op, operands)
        for k, argument in enumerate(given):
            for t in tensors_in(argument):
                self._seen(op, t, k in facts.writes)
        if facts.name == "ones_like" and calls(self.session.watcher.place().stack, "_make_grads"):
            self._losses.append(self._ref(args[0]))

    def _gives(self, op: Any, args: Sequence[Any], kwargs: Any, results: list[Any]) -> None:
        facts = facts_of(op)
        self._check_strided(op, results)
        place, own = self.place()
        sized = torch.Tag.dynamic_output_shape in getattr(op, "tags", ())
        if facts.name in _INDEXED:
            sized, args = False, self._by_numbers(args)
        if sized and any(t.is_floating_point() for t in results):
            self._refuse(op, OF_DATA)
        is_drawn = sized or (facts.random and facts.name.rstrip("_") in _DRAWING)
        given = tuple(_map(args, self._ref)), {k: _map(v, self._ref) for k, v in kwargs.items()}
        for t in results:
            self.keep(t)
        refs = tuple(map(self._ref, results))
        if floats := [r for r, t in zip(refs, results, strict=True) if t.is_floating_point()]:
            for t in (t for a in (*args, *kwargs.values()) for t in tensors_in(a)):
                self._ends.pop(self._ref(t), None)
            self._ends |= dict.fromkeys(floats)
        drawn = [self._draw(t, facts.name.rstrip("_")) for t in results if is_drawn]
        is_backward = place.phase == "backward"
        self.calls.append(Call(op, *given, refs, own, is_backward, tuple(drawn)))

    def _by_numbers(self, args: Sequence[Any]) -> list[Any]:
        """Masks among indices say how many elements there are: where they are true is an input."""
        if len(args) > 2 and args[2].numel() == 1:  # the same for all that a mask selects
            return list(args)
        found: list[Any] = []
        for t in args[1]:
            is_mask = isinstance(t, torch.Tensor) and t.dtype in (torch.bool, torch.uint8)
            found += map(self._drawn_places, t.nonzero().unbind(1)) if is_mask else [t]
        return [args[0], found, *args[2:]]

    def _drawn_places(self, t: torch.Tensor) -> Ref:
        return self._draw(t, "places")

    def _draw(self, t: torch.Tensor, name: str) -> Ref:
        """Numbers that an op drew become an input."""
        ref = Ref(len(self._numbers))
        self._numbers[ref] = ref.number
        self.leaves.append(Leaf(ref, _copy(t), name, "input"))
        return ref

    def _ref(self, t: torch.Tensor) -> Ref:
        return Ref(self._numbers.setdefault(key_of(t), len(self._numbers)))

    def _seen(self, op: Any, t: torch.Tensor, is_written: bool) -> None:
        """An operand: of a storage that no op of the step made it is a leaf."""
        key, storage = key_of(t), t.untyped_storage()._cdata
        if storage not in self._storages:
            self.keep(t)
            self._own[storage] = set()
            if t.numel() * t.itemsize == t.untyped_storage().nbytes():
                self._whole.add(storage)
        elif storage not in self._own or storage in self._whole or key in self._own[storage]:
            self._check(op, storage, is_written)
            return
        self._own[storage].add(key)
        self._check(op, storage, is_written)
        name, kind = self._named(t)
        self.leaves.append(Leaf(self._ref(t), _copy(t), name, kind))

    def _check(self, op: Any, storage: int, is_written: bool) -> None:
        if is_written:
            self._written.add(storage)
        if storage in self._written and len(self._own.get(storage, ())) > 1:
            self._refuse(op, "it writes memory of views that were made before the step")

    def _check_strided(self, op: Any, tensors: Sequence[torch.Tensor]) -> None:
        if any(map(is_odd, tensors)):
            what = "sparse, quantised and other tensors without strides have no counterpart"
            self._refuse(op, what)

    def _refuse(self, op: Any, why: str) -> NoReturn:
        own = frames(self.session.watcher.place().stack)
        raise ImportFailed([Missing(str(op), why, *(own[0][:2] if own else ("", 0)))])

    def _named(self, t: torch.Tensor) -> tuple[str, str]:
        """Its name among the script's own variables; parameters are renamed in the end."""
        kind = "param" if isinstance(t, nn.Parameter) or (t.requires_grad and t.is_leaf) else ""
        frame: Any = sys._getframe(2)
        while frame is not None:
            if is_own(frame.f_code.co_filename):
                for name, value in list(frame.f_locals.items()):
                    if _is_same(value, t):
                        return name, kind or "input"
            frame = frame.f_back
        return "value", kind or "input"

    # --- the end ---

    def finish(self, is_over: bool = True) -> None:
        """Names what the step has read, and what it leaves: if it is not over, all that is new."""
        names = Names(self.session.hooks.optimizers)
        storages: dict[int, Any] = {n: k[0] for k, n in self._numbers.items()}
        for j, leaf in enumerate(self.leaves):
            storage = storages[leaf.ref.number]
            self.leaves[j] = leaf = leaf._replace(is_written=storage in self._written)
            if storage in self._whole and (name := names.tensors.get(storage)):
                kind = "param" if leaf.kind == "param" else "state"
                self.leaves[j] = leaf._replace(name=name, kind=kind)
        self.outputs |= {f"loss_{k}" if k else "loss": r for k, r in enumerate(self._losses)}
        for leaf in self.leaves:
            if leaf.is_written and leaf.kind == "input":
                self.outputs[f"new_{leaf.name}"] = leaf.ref
        leaves = {storages[leaf.ref.number] for leaf in self.leaves}
        for name, t in names.values.items():
            storage = t.untyped_storage()._cdata
            if storage in self._storages and storage not in leaves:
                self.outputs[name] = self._ref(t)
        taken = set(self.outputs.values())
        left = (ref for ref in self._ends if not is_over and ref not in taken)
        self.outputs |= {f"result_{k}" if k else "result": ref for k, ref in enumerate(left)}
        self.is_complete = self.step is not None


def key_of(t: torch.Tensor) -> Any:
    """The same for tensors that have the same elements of the same memory."""
    layout = t.storage_offset(), tuple(t.shape), t.stride()
    return t.untyped_storage()._cdata, t.dtype, *layout, t.is_conj(), t.is_neg()


def is_odd(t: torch.Tensor) -> bool:
    return t.layout is not torch.strided or t.is_quantized or t.is_meta


def _is_same(value: Any, t: torch.Tensor) -> bool:
    return isinstance(value, torch.Tensor) and not is_odd(value) and (key_of(value) == key_of(t))


def _copy(t: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode(False):  # so that it may be written
        return t.detach().cpu().clone()


def _map(argument: Any, ref: Any) -> Any:
    if isinstance(argument, torch.Tensor):
        return ref(argument)
    if isinstance(argument, list | tuple) and not isinstance(argument, Ref):
        return [_map(a, ref) for a in argument]
    if isinstance(argument, torch.device):
        return torch.device("cpu")
    return argument


class AsIs:
    """A `Judge` that leaves errors of a script as they are."""

    def cause_of(self, error: Exception) -> BaseException | None:
        return error if isinstance(error, OpstepError) else None

    def advice(self, error: Exception) -> Wording | None:
        return None
