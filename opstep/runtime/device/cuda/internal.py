"""CUDA kernels of the ops that no program names (see `plan.internal`); the rest run their CPU
kernels, a unit a thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opstep.runtime.device import internal
from opstep.runtime.device.cuda import statistics

CUDA: dict[str, Callable[..., Any]] = {**internal.CPU, "statistics": statistics.launches}
