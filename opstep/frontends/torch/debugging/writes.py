"""Writes into tensors are shown to the recorder of the past before they happen: those of ops by the
native watcher, and those of memory that leaves PyTorch where it does.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

import torch
from torch.utils import dlpack

from opstep.frontends.scripts.frameworks import Arrivals
from opstep.frontends.torch.eager import native
from opstep.runtime.device.extension import Unavailable, what_is_missing

_COMPILED = "torch._inductor.output_code"
_NN = os.path.join(os.path.dirname(torch.__file__), "nn") + os.sep
_began: list[Any] = []  # what was installed, once
_arrays: dict[int, weakref.ref[Any]] = {}  # that share memory with a tensor, by id of the reference


def begin(tensors: Any) -> str:
    """From now on. `tensors`: the recorder's module, which keeps copies. Gives the reason where
    writes cannot be seen, and "" otherwise.
    """
    if _began:
        return ""
    if threading.current_thread() is not threading.main_thread():
        return "PyTorch was not imported in the main thread"
    try:
        watcher = native.load()
    except Unavailable as error:
        if not what_is_missing():
            native.build_in_background()
        return str(error)
    _began.append(watcher)
    watcher.show_writes(tensors.writes())
    native.open_higher_order_ops()
    watcher.enter(True)
    _watch_threads(watcher)
    _watch_memory(tensors)
    _watch_compiled(tensors)
    tensors.watch()
    os.register_at_fork(after_in_child=lambda: _leave(watcher))
    return ""


def _leave(watcher: Any) -> None:
    """The past of a child process is nobody's."""
    watcher.show_writes(None)
    watcher.enter(False)


def _watch_threads(watcher: Any) -> None:
    bootstrap: Any = threading.Thread._bootstrap_inner  # pyright: ignore

    def entered(self: threading.Thread) -> None:
        watcher.enter(True)
        bootstrap(self)

    threading.Thread._bootstrap_inner = entered  # pyright: ignore


# --- memory that leaves PyTorch -------------------------------------------------------------------


def _watch_memory(tensors: Any) -> None:
    def lend(given: torch.Tensor, array: Any) -> Any:
        """For as long as the array, which its views hold, is there."""
        address = tensors.handed_out(given)

        def back(ref: weakref.ref[Any]) -> None:
            _arrays.pop(id(ref), None)
            tensors.handed_back(address)

        ref = weakref.ref(array, back)
        _arrays[id(ref)] = ref
        return array

    def give(given: torch.Tensor, result: Any) -> Any:
        if not sys._getframe(2).f_code.co_filename.startswith(_NN):  # which compares addresses
            tensors.handed_out(given)
        return result

    def give_storage(given: Any, result: Any) -> Any:
        tensors.handed_out(given._cdata)
        return result

    _after(torch.Tensor, "numpy", lend)
    for name in ("data_ptr", "__dlpack__"):
        _after(torch.Tensor, name, give)
    for module in (torch, dlpack):
        _after(module, "to_dlpack", give)
    _after(torch.UntypedStorage, "data_ptr", give_storage)
    for name in ("__setitem__", "resize_"):
        _before(torch.UntypedStorage, name, lambda storage: tensors.written(storage._cdata))
    _before(torch.cuda.CUDAGraph, "replay", lambda graph: tensors.written_unseen())


def _after(owner: Any, name: str, note: Callable[[Any, Any], Any]) -> None:
    original = getattr(owner, name)

    @wraps(original)
    def called(given: Any, *args: Any, **kwargs: Any) -> Any:
        return note(given, original(given, *args, **kwargs))

    setattr(owner, name, called)


def _before(owner: Any, name: str, note: Callable[[Any], None]) -> None:
    original = getattr(owner, name)

    @wraps(original)
    def called(given: Any, *args: Any, **kwargs: Any) -> Any:
        note(given)
        return original(given, *args, **kwargs)

    setattr(owner, name, called)


# --- what Inductor compiled, whose kernels are no ops ---------------------------------------------


def _watch_compiled(tensors: Any) -> None:
    if _COMPILED in sys.modules:
        _wrap_compiled(tensors)
    else:
        sys.meta_path.insert(0, Arrivals(lambda _: _wrap_compiled(tensors), [_COMPILED]))


def _wrap_compiled(tensors: Any) -> None:
    """Graphs know which inputs they write; of others it may be any."""
    module = sys.modules[_COMPILED]
    for graph in vars(module).values():
        is_graph = isinstance(graph, type) and issubclass(graph, module.OutputCode)
        if is_graph and "__call__" in vars(graph):
            _wrap_graph(graph, tensors)


def _wrap_graph(graph: Any, tensors: Any) -> None:
    original = graph.__call__

    @wraps(original)
    def called(self: Any, inputs: Any) -> Any:
        written: Iterable[int] = getattr(self, "mutated_input_idxs", range(len(inputs)))
        for k in written:
            tensors.written(inputs[k])
        return original(self, inputs)

    graph.__call__ = called
