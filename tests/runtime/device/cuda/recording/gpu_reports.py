"""What a GPU reports, made up."""

from types import SimpleNamespace
from typing import Any

from opstep.runtime.device.cuda.recording.records import Ran
from opstep.runtime.recording import Kernel, Layout

KERNEL = Kernel("k", (4, 2, 1), (256, 1, 1), 40, 1024, 0)


def ran(correlation, start, end, node=0, kernel=None):
    return Ran(node, correlation, start, end, kernel)


def layout_of(*rows, **more):
    """Of a plan that nobody looks at, with these steps on each stream."""
    plan: Any = SimpleNamespace()
    return Layout(plan, [list(r) for r in rows], [[] for _ in rows], **more)
