"""The place of a rank in its mesh."""

from __future__ import annotations

import numpy as np

from opstep.kernels.collective import gpus
from opstep.kernels.move.copying import filled
from opstep.runtime.device.ranks import Ranks
from opstep.runtime.ir.faults import NO_FAULTS
from opstep.runtime.ir.op import Op, Traits
from opstep.runtime.ir.types import TensorType, i32


class rank(Op):
    """The number of this rank in its group, from 0: its place along an axis of the mesh, or among
    all. `extent(over=...)` says how many there are.
    """

    signature = "rank(*, over: axes = none)"
    source = "torch.distributed.get_rank"
    traits = Traits(by_rank=True)
    faults = NO_FAULTS
    grad = None

    def infer(*, over):
        return TensorType(i32, ())

    def oracle(*, over):
        """Of a rank that is alone."""
        return np.array(0, np.int32)

    def cpu(y, *, over):
        return filled(y, 0)

    @staticmethod
    def joined(ranks: Ranks, y, *, over):
        y[...] = ranks.index

    joined_on_gpus = staticmethod(gpus.place)
