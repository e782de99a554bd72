"""Convolutions through cuDNN's graph API: forward, by the images, by the filters. NCHW or NCDHW.

An operation graph is described (cuDNN developer guide, "Graph API"), the library's heuristics name
engines for it, best first, and those that keep our promises become plans: no TF32 and nothing less
exact for f32, and the same bits each time.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple

from opstep.runtime.device.cuda.driver.driver import driver
from opstep.runtime.device.cuda.vendor.libraries import Library, Refused, library
from opstep.runtime.device.routine import Enqueue

_TYPES = {"f32": 0, "f64": 1, "f16": 2, "bf16": 9}  # cudnnDataType_t
WORKSPACE = 1 << 30  # bytes that a plan may use at most
_MOST = 16  # configurations that are looked at

# cudnnBackendAttributeType_t
_HANDLE, _DATA_TYPE, _BOOLEAN, _INT64, _FLOAT, _DOUBLE, _POINTER = range(7)
_CONVOLUTION_MODE, _HEURISTIC, _NOTE, _POINTWISE_MODE, _DESCRIPTOR = 7, 8, 11, 14, 15
_CTYPES = {
    _BOOLEAN: ctypes.c_bool,
    _INT64: ctypes.c_int64,
    _FLOAT: ctypes.c_float,
    _DOUBLE: ctypes.c_double,
    **dict.fromkeys(
        (_DATA_TYPE, _CONVOLUTION_MODE, _HEURISTIC, _NOTE, _POINTWISE_MODE), ctypes.c_int
    ),
    **dict.fromkeys((_HANDLE, _POINTER, _DESCRIPTOR), ctypes.c_void_p),
}

# cudnnBackendDescriptorType_t
_POINTWISE, _CONVOLUTION, _ENGINE, _CONFIG, _HEURISTICS, _PLAN = range(6)
_POINTWISE_OP, _GRAPH, _PACK, _TENSOR = 13, 15, 16, 17


class _Kind(NamedTuple):
    """One of the three operations: its descriptor, and its attributes' numbers."""

    descriptor: int
    alpha: int
    beta: int
    convolution: int
    images: int
    filters: int
    outputs: int


KINDS = {
    "forward": _Kind(10, 700, 701, 702, images=704, filters=703, outputs=705),
    "images": _Kind(12, 706, 707, 708, images=710, filters=709, outputs=711),
    "filters": _Kind(11, 712, 713, 714, images=716, filters=715, outputs=717),
}
# cudnnBackendAttributeName_t
_POINTWISE_MODE_IS, _POINTWISE_COMPUTES = 0, 1
_WINDOW_COMPUTES, _WINDOW_MODE, _WINDOW_DILATION, _WINDOW_STRIDE = 100, 101, 102, 103
_WINDOW_AFTER, _WINDOW_BEFORE, _WINDOW_AXES = 104, 105, 106
_HEURISTICS_MODE, _HEURISTICS_GRAPH, _HEURISTICS_RESULTS = 200, 201, 202
_CONFIG_ENGINE = 300
_PLAN_HANDLE, _PLAN_CONFIG, _PLAN_WORKSPACE = 400, 401, 402
_ADDED, _ADDED_X, _ADDED_B, _ADDED_Y = 750, 751, 752, 753
_GRAPH_HANDLE, _GRAPH_OPERATIONS = 800, 801
_TENSOR_ALIGNMENT, _TENSOR_TYPE, _TENSOR_SHAPE, _TENSOR_STRIDES = 900, 901, 902, 903
_TENSOR_UID, _TENSOR_VIRTUAL = 906, 907
_PACK_UIDS, _PACK_POINTERS, _PACK_WORKSPACE = 1000, 1001, 1003
_ENGINE_INDEX, _ENGINE_NOTES = 1301, 1303

_IMAGES, _FILTERS, _OUTPUTS, _BIAS, _SUMS = range(1, 6)  # how tensors are called in a graph
# cudnnBackendHeurMode_t: B ranks better than A (a U-Net's convolutions, H200: 0.6 of the time)
_HEURISTICS_B, _HEURISTICS_A, _FALLBACK = 1, 3, 2

# cudnnBackendNumericalNote_t
_TENSOR_CORES, _CUT_INPUTS, _COARSE_SUMS, _NOT_THE_SAME = 0, 1, 2, 4
_WINOGRAD_6, _WINOGRAD_13 = 7, 8
_NOTES = 32  # more than there are
# Has no note, and yet is off by 1e-2 of the largest element with 5x5 filters (cuDNN 9.19, H200).
_COARSE = {("f32", "filters", 17)}


class Convolution(NamedTuple):
    """Images [N, C, H, W] and filters [K, C/groups, R, S] give outputs [N, K, H', W']; or volumes,
    with one axis more.

    `kind`: which of the three is computed from the other two. `bias`: added to the outputs by the
    same plan (forward alone).
    """

    kind: str
    dtype: str
    images: tuple[int, ...]
    filters: tuple[int, ...]
    outputs: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    bias: bool = False
    alignment: int = 256


def supports(dtype: str) -> bool:
    return dtype in _TYPES


def engines(convolution: Convolution) -> Iterator[Engine]:
    """Engines that may compute it, best first; whether one really can is known when it is planned.
    The GPU's context is current.
    """
    lib = library("cudnn")
    graph = _graph(lib, _handle(_ordinal()), convolution)
    for mode in (_HEURISTICS_B, _HEURISTICS_A, _FALLBACK):
        rank = -1
        for rank, (index, config) in enumerate(_allowed(lib, graph, mode, convolution)):
            yield Engine(convolution, graph, config, f"{rank} (engine {index})")
        if rank >= 0:
            return


def _allowed(
    lib: Library, graph: _Descriptor, mode: int, convolution: Convolution
) -> Iterator[tuple[int, _Descriptor]]:
    """Configurations whose results are as exact as ours and the same each time, at most `_MOST`."""
    barred = {_NOT_THE_SAME, _WINOGRAD_6, _WINOGRAD_13}
    if convolution.dtype in ("f32", "f64"):
        barred |= {_TENSOR_CORES, _CUT_INPUTS, _COARSE_SUMS}
    count = 0
    for config in _configs(lib, graph, mode):
        engine = _Descriptor(lib, _ENGINE)
        config.get_into(_CONFIG_ENGINE, [engine])
        (index,) = engine.get(_ENGINE_INDEX, _INT64, 1)
        coarse = (convolution.dtype, convolution.kind, index) in _COARSE
        if barred.isdisjoint(engine.get(_ENGINE_NOTES, _NOTE, _NOTES)) and not coarse:
            count += 1
            yield index, config
        if count == _MOST:
            return


class Engine:
    """A configured engine; `plan` makes it what can be run."""

    def __init__(
        self, convolution: Convolution, graph: _Descriptor, config: _Descriptor, name: str
    ):
        self.name = name
        self._convolution, self._graph, self._config = convolution, graph, config

    def plan(self) -> Planned | None:
        """None where the engine cannot do it, or wants too much memory."""
        lib = library("cudnn")
        plan = _Descriptor(lib, _PLAN)
        try:
            plan.set(_PLAN_HANDLE, _HANDLE, [_handle(_ordinal())])
            plan.set(_PLAN_CONFIG, _DESCRIPTOR, [self._config])
            plan.finalize()
        except Refused:
            return None
        workspace = plan.get(_PLAN_WORKSPACE, _INT64, 1)[0]
        return Planned(self, plan, workspace) if workspace <= WORKSPACE else None


class Planned:
    """A convolution with an engine; bound to what it reads, then what it writes, then its bias."""

    def __init__(self, engine: Engine, plan: _Descriptor, workspace: int):
        self.name = f"cudnn {engine.name}"
        self.workspace = workspace
        self._plan, self._engine = plan, engine  # the plan needs its configuration and graph

    def bind(self, pointers: Sequence[int], workspace: int) -> Enqueue:
        lib, convolution = library("cudnn"), self._engine._convolution
        roles = {
            "forward": (_IMAGES, _FILTERS, _OUTPUTS),
            "images": (_OUTPUTS, _FILTERS, _IMAGES),
            "filters": (_OUTPUTS, _IMAGES, _FILTERS),
        }[convolution.kind]
        roles += (_BIAS,) if convolution.bias else ()
        pack = _Descriptor(lib, _PACK)
        pack.set(_PACK_UIDS, _INT64, roles)
        pack.set(_PACK_POINTERS, _POINTER, pointers)
        pack.set(_PACK_WORKSPACE, _POINTER, [workspace])
        pack.finalize()
        ordinal = _ordinal()
        handle, run, plan = _handle(ordinal), lib.cudnnBackendExecute, self._plan

        def enqueue(stream: int) -> None:
            with lib.lock:  # a handle has one stream at a time
                if _streams.get(ordinal) != stream:
                    lib.cudnnSetStream(handle, ctypes.c_void_p(stream))
                    _streams[ordinal] = stream
                run(handle, plan.address, pack.address)

        return enqueue


_streams: dict[int, int] = {}  # of each GPU's handle


class _Descriptor:
    """A backend descriptor; keeps alive those that its attributes name."""

    def __init__(self, lib: Library, kind: int):
        self.address = ctypes.c_void_p()
        self._lib = lib
        self._kept: list[_Descriptor] = []
        lib.cudnnBackendCreateDescriptor(kind, ctypes.byref(self.address))

    def set(self, attribute: int, kind: int, values: Sequence) -> None:
        self._kept += [v for v in values if isinstance(v, _Descriptor)]
        plain = [v.address if isinstance(v, _Descriptor) else v for v in values]
        array = (_CTYPES[kind] * len(plain))(*plain)
        self._lib.cudnnBackendSetAttribute(
            self.address, attribute, kind, ctypes.c_int64(len(plain)), array
        )

    def finalize(self) -> _Descriptor:
        self._lib.cudnnBackendFinalize(self.address)
        return self

    def get(self, attribute: int, kind: int, most: int) -> list:
        array, count = (_CTYPES[kind] * most)(), ctypes.c_int64()
        self._lib.cudnnBackendGetAttribute(
            self.address, attribute, kind, ctypes.c_int64(most), ctypes.byref(count), array
        )
        return list(array[: count.value])

    def get_into(self, attribute: int, descriptors: Sequence[_Descriptor]) -> int:
        """Fills descriptors that were made for it; gives how many there are."""
        count = ctypes.c_int64()
        array = (ctypes.c_void_p * len(descriptors))(*(d.address for d in descriptors))
        self._lib.cudnnBackendGetAttribute(
            self.address, attribute, _DESCRIPTOR, ctypes.c_int64(len(descriptors)),
            ctypes.byref(count), array if descriptors else None,
        )  # fmt: skip
        return count.value

    def __del__(self) -> None:
        if self.address:
            self._lib.loaded.cudnnBackendDestroyDescriptor(self.address)


def _configs(lib: Library, graph: _Descriptor, mode: int) -> list[_Descriptor]:
    heuristics = _Descriptor(lib, _HEURISTICS)
    heuristics.set(_HEURISTICS_GRAPH, _DESCRIPTOR, [graph])
    heuristics.set(_HEURISTICS_MODE, _HEURISTIC, [mode])
    try:
        heuristics.finalize()
    except Refused:
        return []
    found = [_Descriptor(lib, _CONFIG) for _ in range(heuristics.get_into(_HEURISTICS_RESULTS, []))]
    return found[: heuristics.get_into(_HEURISTICS_RESULTS, found)] if found else []


def _graph(lib: Library, handle: ctypes.c_void_p, c: Convolution) -> _Descriptor:
    kind = KINDS[c.kind]
    real = _DOUBLE if c.dtype == "f64" else _FLOAT
    compute = _TYPES["f64" if c.dtype == "f64" else "f32"]
    outputs = _tensor(lib, c, _SUMS if c.bias else _OUTPUTS, c.outputs, virtual=c.bias)
    operation = _Descriptor(lib, kind.descriptor)
    operation.set(kind.convolution, _DESCRIPTOR, [_window(lib, c, compute)])
    operation.set(kind.images, _DESCRIPTOR, [_tensor(lib, c, _IMAGES, c.images)])
    operation.set(kind.filters, _DESCRIPTOR, [_tensor(lib, c, _FILTERS, c.filters)])
    operation.set(kind.outputs, _DESCRIPTOR, [outputs])
    operation.set(kind.alpha, real, [1.0])
    operation.set(kind.beta, real, [0.0])
    operations = [operation.finalize()]
    if c.bias:
        addition = _Descriptor(lib, _POINTWISE)
        addition.set(_POINTWISE_MODE_IS, _POINTWISE_MODE, [0])
        addition.set(_POINTWISE_COMPUTES, _DATA_TYPE, [compute])
        added = _Descriptor(lib, _POINTWISE_OP)
        added.set(_ADDED, _DESCRIPTOR, [addition.finalize()])
        added.set(_ADDED_X, _DESCRIPTOR, [outputs])
        each = (1, c.outputs[1], *[1] * len(c.stride))
        added.set(_ADDED_B, _DESCRIPTOR, [_tensor(lib, c, _BIAS, each)])
        added.set(_ADDED_Y, _DESCRIPTOR, [_tensor(lib, c, _OUTPUTS, c.outputs)])
        operations.append(added.finalize())
    graph = _Descriptor(lib, _GRAPH)
    graph.set(_GRAPH_OPERATIONS, _DESCRIPTOR, operations)
    graph.set(_GRAPH_HANDLE, _HANDLE, [handle])
    return graph.finalize()


def _tensor(
    lib: Library, c: Convolution, uid: int, shape: tuple[int, ...], virtual: bool = False
) -> _Descriptor:
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    made = _Descriptor(lib, _TENSOR)
    made.set(_TENSOR_TYPE, _DATA_TYPE, [_TYPES["f32" if virtual and c.dtype != "f64" else c.dtype]])
    made.set(_TENSOR_SHAPE, _INT64, shape)
    made.set(_TENSOR_STRIDES, _INT64, strides)
    made.set(_TENSOR_UID, _INT64, [uid])
    made.set(_TENSOR_ALIGNMENT, _INT64, [c.alignment])
    if virtual:
        made.set(_TENSOR_VIRTUAL, _BOOLEAN, [True])
    return made.finalize()


def _window(lib: Library, c: Convolution, compute: int) -> _Descriptor:
    made = _Descriptor(lib, _CONVOLUTION)
    made.set(_WINDOW_COMPUTES, _DATA_TYPE, [compute])
    made.set(_WINDOW_MODE, _CONVOLUTION_MODE, [1])  # cross-correlation
    made.set(_WINDOW_DILATION, _INT64, c.dilation)
    made.set(_WINDOW_STRIDE, _INT64, c.stride)
    made.set(_WINDOW_AFTER, _INT64, c.after)
    made.set(_WINDOW_BEFORE, _INT64, c.before)
    made.set(_WINDOW_AXES, _INT64, [len(c.stride)])
    return made.finalize()


def _ordinal() -> int:
    """Of the GPU whose context is current."""
    return int(driver().cuCtxGetDevice())


@cache
def _handle(ordinal: int) -> ctypes.c_void_p:
    made = ctypes.c_void_p()
    library("cudnn").cudnnCreate(ctypes.byref(made))
    return made
