"""`debug_kernel`: a kernel under a debugger of Python, without a graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from opstep.runtime.ir.diagnostics import did_you_mean
from opstep.runtime.ir.errors import InputError

if TYPE_CHECKING:
    from opstep.runtime.debugger.kernel.process import KernelProcess

Three = tuple[int, int, int]


def debug_kernel(
    op: str,
    *arrays: Any,
    attrs: Mapping[str, Any] | None = None,
    target: str = "cuda",
    launch: int = 0,
    block: Three = (0, 0, 0),
    thread: Three = (0, 0, 0),
    unit: int = 0,
    every: bool = False,
    element: int | Sequence[int] | None = None,
    result: int = 0,
) -> KernelProcess:
    """Runs one block of a launch of an op on these operands, in the simulator, in a process of
    its own, under debugpy. A debugger of Python that attaches to the ``host`` and ``port`` of what
    is returned stands at the kernel's first line, in the thread that was asked for.

    `arrays`: of the element types that the op is to see; None for an absent operand. `launch`:
    which one of those that the op makes. ``target="cpu"`` takes the kernel that a CPU runs, for one
    `unit` of its range. With an `element` of a `result` it is the thread, or unit, that writes that
    one. With `every`, breakpoints stop other threads of the block, too. Raises
    `InputError`; `DeviceError` where debugpy or the simulator are not there.
    """
    import opstep.kernels  # noqa: F401 - registers the ops
    from opstep.runtime.debugger.kernel.job import Job
    from opstep.runtime.debugger.kernel.launches import ARCH, kernel_launches
    from opstep.runtime.debugger.kernel.process import KernelProcess
    from opstep.runtime.device.single import one_step
    from opstep.runtime.ir.op import OPS, Mismatch, complete

    if op not in OPS:
        raise InputError(f"there is no op {op}", hint=did_you_mean(op, OPS) or "")
    if target not in ("cuda", "cpu"):
        raise InputError(f"target is {target!r}; there are cuda and cpu")
    operands = [None if a is None else np.asarray(a) for a in arrays]
    try:
        step, stored, results = one_step(OPS[op], operands, complete(OPS[op], dict(attrs or {})))
        types = (*stored, *results)
        launches = kernel_launches(step, types, target)
    except KeyError as error:
        raise InputError(f"{op}: the language has no elements of type {error.args[0]}") from None
    except (Mismatch, TypeError) as error:
        raise InputError(f"{op}: {error}") from None
    if not 0 <= launch < len(launches):
        raise InputError(f"{op} makes {len(launches)} launches on {target}; there is no {launch}")
    operands += [None] * (len(stored) - len(operands))
    one = launches[launch]
    stop_at = None if element is None else (result, _element_number(results, result, element))
    return KernelProcess(Job(step, types, operands, one, ARCH, block, thread, unit, every, stop_at))


def _element_number(results: Sequence[Any], result: int, element: int | Sequence[int]) -> int:
    """The number of an element in row-major order."""
    if not 0 <= result < len(results):
        raise InputError(f"the op has {len(results)} results; there is no {result}")
    index = (element,) if isinstance(element, int) else tuple(element)
    try:
        return int(np.ravel_multi_index(index, results[result].shape)) if index else 0
    except (ValueError, TypeError):
        shown = f"[{', '.join(map(str, index))}]"
        raise InputError(f"{shown} is not an element of {results[result]}") from None
