"""What a GPU leaves of a run, made up."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from opstep.runtime.device.cuda.recording.stamps import Clock
from opstep.runtime.recording import Kernel, Layout

KERNEL = Kernel("k", (4, 2, 1), (256, 1, 1), 40, 1024, 0)


def layout_of(*rows, **more):
    """Of a plan that nobody looks at, with these steps on each stream."""
    plan: Any = SimpleNamespace()
    return Layout(plan, [list(r) for r in rows], [[] for _ in rows], **more)


class HostClock(Clock):
    """A GPU's clock that is the host's, with kernels a gap apart."""

    def __init__(self, gap=0):
        self._offset = self._believed = 0
        self._rate = 0.0
        self._gap = gap

    def compare(self):
        """They are the same."""


def slots_of(*streams):
    """By stream, what was copied to the host; -1 where nothing was."""
    return {s: np.array(words, np.int64) for s, words in enumerate(streams) if words}
