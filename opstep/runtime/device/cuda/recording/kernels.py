"""The kernels that an op launches on a GPU: names of kernels, how many threads, registers."""

from __future__ import annotations

import re
from contextlib import suppress
from functools import cache
from math import prod
from typing import Any, NamedTuple

from opstep.runtime.device.cuda.driver.driver import Gpu
from opstep.runtime.device.cuda.driver.graphs import captured_graph
from opstep.runtime.device.cuda.driver.launching import BoundGrid
from opstep.runtime.device.cuda.driver.streams import CudaStream
from opstep.runtime.device.routine import BoundCall
from opstep.runtime.ir.errors import DeviceError
from opstep.runtime.recording import Kernel


class Launched(NamedTuple):
    """`fits`: whether all of its blocks run at once, and another one beside them."""

    kernel: Kernel
    fits: bool


def launched(gpu: Gpu, launch: Any) -> list[Launched]:
    """What a launch runs. A library's kernels are found in a graph that is never launched; it must
    have run before, so that all that it needs is loaded. Of what runs users' code, or with other
    ranks, they stay unknown.
    """
    if isinstance(launch, BoundGrid):
        function, *dims, shared, _ = launch.row
        return [_described(gpu, function, tuple(dims[:3]), tuple(dims[3:]), shared)]
    if isinstance(launch, BoundCall) and launch.located is None:
        with suppress(DeviceError), captured_graph(gpu, launch, CudaStream(gpu)) as graph:
            return _in_graph(gpu, graph)
    return []


def _in_graph(gpu: Gpu, graph: Any) -> list[Launched]:
    driver, found = gpu.driver, []
    count = driver.cuGraphGetNodes(graph, 0)[1]
    for node in driver.cuGraphGetNodes(graph, count)[0][:count]:
        if driver.cuGraphNodeGetType(node) != driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL:
            continue
        p = driver.cuGraphKernelNodeGetParams(node)
        function = int(p.func) or int(driver.cuKernelGetFunction(p.kern))
        grid, block = (p.gridDimX, p.gridDimY, p.gridDimZ), (p.blockDimX, p.blockDimY, p.blockDimZ)
        found.append(_described(gpu, function, grid, block, p.sharedMemBytes))
    return found


@cache
def _described(
    gpu: Gpu, function: int, grid: tuple[int, int, int], block: tuple[int, int, int], shared: int
) -> Launched:
    driver = gpu.driver
    kinds, ask = driver.CUfunction_attribute, driver.cuFuncGetAttribute
    registers = ask(kinds.CU_FUNC_ATTRIBUTE_NUM_REGS, function)
    static = ask(kinds.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, function)
    name = b""
    with suppress(RuntimeError, DeviceError):  # drivers before CUDA 12.3 do not tell
        name = driver.cuFuncGetName(function)
    most = driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(function, prod(block), shared)
    kernel = Kernel(readable(name.decode()), grid, block, registers, static, shared)
    return Launched(kernel, prod(grid) < most * gpu.multiprocessors)


def readable(name: str) -> str:
    """A kernel's name as it was written, without types: as in
    ``opstep.kernels.conv.cuda_edges.mend_edges``.

    Names are mangled as in C++: ``_ZN6opstep7kernels...E``, ``_Z4work...``.
    """
    mangled = re.match(r"_ZN?K?(?=\d)", name)
    at, parts = mangled.end() if mangled else len(name), []
    while length := re.match(r"\d+", name[at:]):
        at += length.end()
        parts.append(name[at : at + int(length[0])])
        at += int(length[0])
        if not name.startswith("_ZN"):
            break
    return ".".join(parts) or name
