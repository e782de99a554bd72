"""Runs AOTAutograd's graphs on PyTorch's tensors, where they lie."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from opstep.api.executable import Executable
from opstep.api.external import ExternalTensor
from opstep.frontends.scripts.watching import Watch
from opstep.frontends.torch.aliases import restrided
from opstep.frontends.torch.dims import Sizes, dtype_of, evaluated
from opstep.frontends.torch.graphs import AtenGraph, is_gradient
from opstep.frontends.torch.hunting import Hunter
from opstep.frontends.torch.memory import Results, Wanted, strides_of
from opstep.frontends.torch.outstanding import outstanding
from opstep.runtime.device.flagging import Raised
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.graph import Apply
from opstep.runtime.ir.types import DType, TensorType
from opstep.runtime.nan.kinds import Roles

data_ptr, is_contiguous = torch.Tensor.data_ptr, torch.Tensor.is_contiguous  # to be mapped
is_neg, is_zero = torch.Tensor.is_neg, torch.Tensor._is_zerotensor

KEPT = 32  # executables of a graph whose sizes change, each for other sizes
COPIED = 16 << 20  # bytes of inputs that PyTorch updates, which a hunt copies before


class Compiled:
    """A graph as AOTAutograd calls it: with a list of arguments, which it empties. What their sizes
    are decides which executable runs; where none is symbolic there is one. Raises `ImportFailed`
    where ops have no counterpart.
    """

    def __init__(self, graph: AtenGraph, watch: Watch):
        self._boxed_call = True  # AOTAutograd asks for it, and copies it to what it wraps around
        self.graph = graph
        self.watch = watch
        self.program = graph.program()
        self._only: _Ready | None = None
        self._ready: OrderedDict[Any, _Ready] = OrderedDict()  # the latest that was used last

    def __call__(self, args: list[Any]) -> list[Any]:
        within = self.watch.hunting.within
        before = within(True)
        try:
            ready = self._only or self._found(args)
            given = ready(args)
        finally:
            within(before)
        args.clear()
        return given

    def _found(self, args: list[Any]) -> _Ready:
        if not self.graph.is_dynamic:
            self._only = self._made(args)
            return self._only
        key = tuple(a.shape if isinstance(a, torch.Tensor) else a for a in args)
        ready = self._ready.pop(key, None) or self._made(args)
        self._ready[key] = ready
        while len(self._ready) > KEPT:
            self._ready.popitem(last=False)
        return ready

    def _made(self, args: list[Any]) -> _Ready:
        sizes = self.graph.sizes(args) if self.graph.is_dynamic else {}
        program = self.program or self.graph.program_for(sizes)
        inputs = [n.meta["val"] for n in self.graph.sources]
        results = [self.graph.expected(k) for k in range(len(self.graph.results))]
        device = _device_of(inputs + results)
        types = [
            TensorType(dtype_of(t.dtype), tuple(evaluated(n, sizes) for n in t.shape))
            for t in inputs
        ]
        settings = replace(self.watch.settings, device=_name(device))
        executable = Executable(
            program, self.graph.name, types, settings, self.watch.alarm, self.watch.hunting.masked
        )
        return _Ready(self.graph, executable, device, sizes, self.watch)


def _device_of(tensors: list[torch.Tensor]) -> torch.device:
    """Where a graph runs: on the GPU, if any tensor is there; scalars may be elsewhere."""
    found = {t.device for t in tensors}
    gpus = [d for d in found if d.type != "cpu"]
    if len(gpus) > 1 or any(d.type != "cuda" for d in gpus):
        listed = ", ".join(sorted(map(str, found)))
        raise InputError(f"tensors are on {listed}; a graph runs on the CPU or on one CUDA GPU")
    return gpus[0] if gpus else torch.device("cpu")


def _name(device: torch.device) -> str:
    return f"cuda:{device.index}" if device.index else device.type


class _Ready:
    """An executable, and what becomes of its inputs and results."""

    def __init__(
        self, graph: AtenGraph, executable: Executable, device: torch.device, sizes: Sizes,
        watch: Watch,
    ):  # fmt: skip
        self.executable = executable
        self.device = device
        self.watch = watch
        self._hunter = Hunter(self, watch.hunting) if watch.alarm is not None else None
        plan, kept = executable.plan, set(graph.saved())
        names = [plan.values[v].name for v in plan.outputs]
        own = {name for k, name in enumerate(names) if k not in kept}
        self.saved = {names[k] for k in kept} - own
        self.kept_values = graph.labels.kept
        for statement in executable.graph.body if self.saved else ():
            if isinstance(statement, Apply) and statement.at:
                line = f"{statement.at.file.rpartition('/')[2]}:{statement.at.line}"
                self.kept_values.lines |= {
                    b.name.text: line for b in statement.results if b.name.text in self.saved
                }
        numbers = {n: k for k, n in enumerate(graph.placeholders)}
        self._checks = [i.bound(numbers, sizes) for i in graph.indices]
        self._draw = [d.bound(sizes) for d in graph.drawn]
        self._inputs = graph.inputs
        given = zip(executable.graph.inputs, graph.sources, strict=True)
        self._gradients = {b.name.text for b, n in given if is_gradient(n)}
        self._constants = [t.to(device).contiguous() for t in graph.constants]
        self._scalars = [k for k, n in enumerate(graph.sources) if n.meta["val"].device != device]
        self._restrided: list[tuple[int, Any]] = []
        wanted = [self._wanted(graph, k, sizes) for k in range(len(graph.results))]
        self._results = Results(wanted, device)
        self._stream = _streams_of(device)
        self._hunts_late = self._hunter is not None and self._stream is not None
        self._updated = _by_dtype(graph.updated(), executable.types) if self._hunts_late else []
        self._outputs = [(o.kind, o.index, evaluated(o.value, sizes)) for o in graph.outputs]
        self._views = [(k, o.view.bound(sizes)) for k, o in enumerate(graph.outputs) if o.view]

    def _wanted(self, graph: AtenGraph, k: int, sizes: Sizes) -> Wanted:
        """The memory that the k-th result needs."""
        expected = graph.expected(k)
        shape: Any = self.executable.result_types[k].shape
        strides = tuple(evaluated(s, sizes) for s in expected.stride())
        if not graph.is_kept(k) and _lies_otherwise(shape, strides):
            self._restrided.append((k, strides))
        return Wanted(shape, expected.dtype, graph.hidden(k))

    def __call__(self, args: list[Any]) -> list[Any]:
        if self._hunts_late:
            outstanding.poll()
        if self._draw:
            args = [*args, *(draw(args) for draw in self._draw)]
        for check in self._checks:
            check(args)
        inputs = [args[k] for k in self._inputs]
        if not all(map(is_contiguous, inputs)):
            inputs = [t.contiguous() for t in inputs]
        if any(map(is_neg, inputs)) or any(map(is_zero, inputs)):
            inputs = list(map(_written_out, inputs))
        if self._constants or self._scalars:
            inputs += self._constants
            for k in self._scalars:
                inputs[k] = inputs[k].to(self.device)
        results: list[Any] = self._run(inputs)
        for k, strides in self._restrided:
            results[k] = restrided(results[k], strides)
        given = [
            results[index] if kind == "result" else args[index] if kind == "input" else value
            for kind, index, value in self._outputs
        ]
        for k, view in self._views:
            given[k] = view.of(given[k])
        return given

    def _run(self, inputs: list[torch.Tensor]) -> list[torch.Tensor | None]:
        watch, stream = self.watch, self._stream and self._stream()
        results, addresses, pieces = self._results.allocated()
        if watch.recording is not None:
            self._results.fill_in(results, pieces)
            self.executable(
                self._external(inputs, self.executable.types),
                self._external(results, self.executable.result_types),
                stream=stream, recording=watch.recording,
            )  # fmt: skip
        else:
            self.executable.run(list(map(data_ptr, inputs)), addresses, stream)
            self._results.fill_in(results, pieces)
        if self._hunter is not None:
            self._hunt(self._hunter, inputs, results)
        return results

    # --- hunts ---

    def roles(self, inputs: list[torch.Tensor]) -> Roles:
        """Of these inputs and the outputs: constants of the model's text; gradients and what is
        trained; what is kept for the backward.
        """
        names = [b.name.text for b in self.executable.graph.inputs]
        trained = [isinstance(t, torch.nn.Parameter) and t.requires_grad for t in inputs]
        strict = {n for n, t in zip(names, trained, strict=True) if t}
        constants = names[len(names) - len(self._constants) :]
        return Roles(
            frozenset(constants), frozenset(strict | self._gradients), frozenset(self.saved)
        )

    def _hunt(self, hunter: Hunter, inputs: list, results: list) -> None:
        """Has a step's flags read: now, or later, where a GPU may still be at it. PyTorch then
        overwrites some inputs before. Results of a forward are not kept, for all that led to them
        would be, too.
        """
        verdict = self.watch.verdict()
        if verdict is None or not verdict.ends:
            hunter.ran(verdict, inputs)
            return
        if self._updated and not hunter.waits:
            with torch.no_grad():
                inputs = self._set_aside(inputs)
        kept = [] if self.executable.graph.name.text == "forward" else results
        hunter.queued(verdict, inputs, kept, self.executable.nbytes)

    def _set_aside(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """With copies of those that will be overwritten: of many in one launch."""
        kept = list(inputs)
        for numbers, sizes in self._updated:
            given = [inputs[k] for k in numbers]
            flat = [t if t.dim() == 1 else t.reshape(-1) for t in given]
            for k, t, copy in zip(numbers, given, torch.cat(flat).split(sizes), strict=True):
                kept[k] = copy if t.dim() == 1 else copy.view(t.shape)
        return kept

    def named(self, inputs: list[torch.Tensor]) -> dict[str, ExternalTensor]:
        """As a hunt takes them."""
        names = [b.name.text for b in self.executable.graph.inputs]
        return dict(zip(names, self._external(inputs, self.executable.types), strict=True))

    def repeat(
        self, inputs: list[torch.Tensor], results: list[tuple[torch.Tensor, int]]
    ) -> list[Raised] | None:  # fmt: skip
        """The flags of a step on these inputs; None if it gives other bits than it gave. `results`:
        what it gave, and the versions that they had.
        """
        assert self._stream is not None
        try:
            again = self._results.apart()
        except torch.OutOfMemoryError:
            return None
        targets = [0 if t is None else t.data_ptr() for t in again]
        raised = self.executable.repeat(list(map(data_ptr, inputs)), targets, self._stream())
        made = [t for t in again if t is not None]
        for (before, version), after in zip(results, made, strict=False):
            if before._version == version and not _have_same_bits(before, after):
                return None
        return raised

    def _external(self, tensors: Any, types: Any) -> list[Any]:
        device = self.executable.settings.device
        return [
            None if t is None else ExternalTensor(t.data_ptr(), type, device, t)
            for t, type in zip(tensors, types, strict=True)
        ]


def _by_dtype(
    numbers: list[int], types: Sequence[TensorType]
) -> list[tuple[list[int], list[int]]]:  # fmt: skip
    """Inputs by their dtypes, each with its size; none where copies of them would take too long."""
    found: dict[DType, list[int]] = {}
    for k in numbers:
        found.setdefault(types[k].dtype, []).append(k)
    sizes: dict[int, Any] = {k: types[k].size for k in numbers}
    nbytes: Any = sum(types[k].nbytes for k in numbers)
    if nbytes > COPIED:
        return []
    return [(some, [sizes[k] for k in some]) for some in found.values()]


def _have_same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    return torch.equal(a.view(bits), b.view(bits))


def _streams_of(device: torch.device) -> Callable[[], int] | None:
    """Says which stream is PyTorch's; None where nothing is queued."""
    if device.type != "cuda":
        return None
    index = torch.cuda.current_device() if device.index is None else device.index
    # as inductor asks: `torch.cuda.current_stream` takes ten times as long
    return partial(torch._C._cuda_getCurrentRawStream, index)  # pyright: ignore


def _written_out(t: torch.Tensor) -> torch.Tensor:
    """With its elements in memory: of a tensor of zeros PyTorch has none, and the negative of one
    may be that one with a mark.
    """
    if t._is_zerotensor():
        return torch.zeros(t.shape, dtype=t.dtype, device=t.device)
    return t.resolve_neg()


def _lies_otherwise(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether strides are others than those of contiguous memory."""
    pairs = zip(shape, strides, strides_of(shape), strict=True)
    return 0 not in shape and any(n != 1 and s != own for n, s, own in pairs)
