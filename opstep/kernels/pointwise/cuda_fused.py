"""Groups of elementwise ops on CUDA: see `cuda_elementwise`."""

from __future__ import annotations

from collections.abc import Callable

from opstep.kernels.pointwise.conversions import as_numbers
from opstep.kernels.pointwise.cuda_elementwise import Task, loop
from opstep.kernels.pointwise.fused import Element, launch, layout_of
from opstep.kernels.pointwise.loops import indented
from opstep.runtime.device.launch import Arg, Grid, Launch
from opstep.runtime.device.texts import from_text
from opstep.runtime.plan.fusing import Body

_tasks: dict[str, Task] = {}


def launch_on_gpu(*given: Arg, body: Body) -> Grid | Launch:
    """A launch of the group; of more elements than its kernels count, one of the CPU's text."""
    count = len(body.operands)
    args = [as_numbers(a) for a in given]
    grid = loop(_task(body), args[:count], args[count:], (0,), layout_of(args, body))
    return grid or launch(*args, body=body, on_gpu=True)


def _task(body: Body) -> Task:
    if body.text not in _tasks:  # as text: 0.0 and -0.0 are equal
        element = Element(body, on_gpu=True)
        function = element_of(element, f"fused on CUDA {len(_tasks)}")
        _tasks[body.text] = task_of(element, function, body)
    return _tasks[body.text]


def task_of(element: Element, function: Callable, body: Body) -> Task:
    """What computes an element of the body's results, by a function of `element_of`."""
    needed = element.needed(range(len(element.results)))
    operands, guarded = len(body.operands), body.updates
    needed = tuple(k for k in needed if k < operands)
    return Task("fused", function, operands, needed, 1, len(body.results), guarded, body.status)


def element_of(element: Element, name: str) -> Callable:
    """A function of one element of each operand, and of a 0: one of each result."""
    results = element.body.results
    needed = element.needed(range(len(results)))
    operands = [f"r{k}" for k in needed if k < len(element.body.operands)]
    lines = [f"def element({', '.join([*operands, 'zero'])}):"]
    lines += indented(element.computed(needed))
    lines.append(f"    return ({', '.join(f'r{r}' for r in results)},)")
    return from_text("\n".join(lines), f"{name}, an element", "element", element.scope)
