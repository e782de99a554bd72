"""What an op launches on a GPU: names of kernels, how many threads, registers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from opstep.runtime.device.cuda.driver.driver import Gpu
from opstep.runtime.device.cuda.driver.graphs import captured_graph
from opstep.runtime.device.cuda.driver.launching import BoundGrid
from opstep.runtime.device.cuda.driver.streams import CudaStream
from opstep.runtime.device.routine import BoundCall
from opstep.runtime.ir.errors import DeviceError
from opstep.runtime.recording import Kernel


def kernels_of(gpu: Gpu, bound: Sequence[Any]) -> tuple[Kernel, ...]:
    """Those of launches that ran before, so that all they need is loaded. A library's are found in
    a graph that is never launched; of what runs users' code, or with other ranks, they stay
    unknown.
    """
    found: list[Kernel] = []
    for launch in bound:
        if isinstance(launch, BoundGrid):
            function, *dims, shared, _ = launch.row
            found.append(_described(gpu, function, dims[:3], dims[3:], shared))
        elif isinstance(launch, BoundCall) and launch.located is None:
            with suppress(DeviceError), captured_graph(gpu, launch, CudaStream(gpu)) as graph:
                found += _in_graph(gpu, graph)
    return tuple(found)


def _in_graph(gpu: Gpu, graph: Any) -> list[Kernel]:
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


def _described(gpu: Gpu, function: int, grid: Any, block: Any, shared: int) -> Kernel:
    driver = gpu.driver
    kinds, ask = driver.CUfunction_attribute, driver.cuFuncGetAttribute
    registers = ask(kinds.CU_FUNC_ATTRIBUTE_NUM_REGS, function)
    static = ask(kinds.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, function)
    name = b""
    with suppress(RuntimeError, DeviceError):  # drivers before CUDA 12.3 do not tell
        name = driver.cuFuncGetName(function)
    return Kernel(readable(name.decode()), tuple(grid), tuple(block), registers, static, shared)


def readable(name: str) -> str:
    """A kernel's name as it was written, without types: ``opstep.kernels.pool.cuda_pool.repeat``.

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
