"""The backend of `torch.compile`, which finds it by name where opstep is installed.

model = torch.compile(model, backend="opstep")
model = torch.compile(model, backend="opstep", options={"hunt": True, "workspace": "runs.db"})
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func

from opstep.frontends.scripts.frames import line_now
from opstep.frontends.scripts.options import Options
from opstep.frontends.scripts.watching import Watch
from opstep.frontends.torch.autograd import decompositions, partition, single_ops
from opstep.frontends.torch.calling import Compiled
from opstep.frontends.torch.definitions import without_definition
from opstep.frontends.torch.errors import ImportFailed
from opstep.frontends.torch.graphs import AtenGraph
from opstep.frontends.torch.in_place import Line, lines_in_place
from opstep.frontends.torch.labels import Labels, arguments_of
from opstep.frontends.torch.rules import all_rules
from opstep.runtime.ir.errors import InputError

Runner = Callable[[list[Any]], list[Any]]


def opstep(
    module: fx.GraphModule, inputs: Sequence[Any], *,
    options: Mapping[str, Any] | None = None, mode: str | None = None,
    hint: str = 'options={"fallback": True} lets PyTorch run it',
) -> Callable[..., Any]:  # fmt: skip
    """Compiles a graph of Dynamo's. Forward and backward become programs, which run on the model's
    own tensors; what is around them (the optimiser, the data, what Dynamo leaves to Python) stays
    PyTorch's. `options`: see `Options`; which device is used follows from the tensors. `hint`: what
    to do about ops without a counterpart.

    Raises `InputError` for options that do not exist, `ImportFailed` where ops have no counterpart.
    """
    if mode is not None:
        hint = 'options={"mode": "debug"} runs the model in a mode of opstep'
        raise InputError(f"mode={mode!r} is for other backends", hint=hint)
    chosen = Options.of(options or {})
    all_rules()
    if chosen.fallback:
        without_definition()  # PyTorch lists its ops once, and here all have their kernels
    maker = _Maker(chosen, Labels(arguments_of(module)), hint, lines_in_place(module))
    within = maker.watch.hunting.within
    compiled = aot_autograd(
        fw_compiler=maker.of("forward"),
        bw_compiler=maker.of("backward"),
        inference_compiler=maker.of("inference"),
        decompositions=decompositions(),
        partition_fn=partition,
    )
    before = within(True)
    try:
        with single_ops():
            return compiled(module, inputs)
    finally:
        within(before)


class _Maker:
    """Makes what runs the graphs of one model."""

    def __init__(self, options: Options, labels: Labels, hint: str, changing: frozenset[Line]):
        self._options = options
        self._labels = labels
        self._hint = hint
        self._changing = changing
        self.watch = Watch(options)

    def of(self, name: str) -> Callable[[fx.GraphModule, Any], Runner]:
        return lambda module, _: self._runner(module, name)

    def _runner(self, module: fx.GraphModule, name: str) -> Runner:
        graph = AtenGraph(module, name, self._labels, self._options.fallback, self._changing)
        devices = graph.devices()
        if "meta" in devices:  # whose tensors have no elements: there is nothing to debug
            if len(devices) > 1:
                _warn(f"PyTorch runs the {name} itself: some of its tensors are on meta")
            return _eager(module)
        try:
            return Compiled(graph, self.watch)
        except ImportFailed as error:
            if not self._options.fallback:
                raise error.hinted(self._hint) from None
            place = next(((m.file, m.line) for m in error.missing if m.line), None)
            _warn(f"PyTorch runs the {name} itself: {error}", place)
            return _eager(module)


def _eager(module: fx.GraphModule) -> Runner:
    """A graph as PyTorch runs it."""
    module.recompile()
    return make_boxed_func(module.forward)


_warned: dict[Any, Any] = {}  # what Python keeps to warn once


def _warn(text: str, place: tuple[str, int] | None = None) -> None:
    """Of a line of the model, or the line that the script is at."""
    file, line = place or line_now() or ("opstep", 0)
    warnings.warn_explicit(text, UserWarning, file, line, registry=_warned)
