"""Composites that work on rows: each result depends on one row of the operands."""

from __future__ import annotations

from functools import lru_cache

from opstep.runtime.device.launch import Arg, Grid, Launch
from opstep.runtime.ir.op import Traits
from opstep.runtime.ir.types import TensorType
from opstep.runtime.transforms.composite import Composite


class RowComposite(Composite):
    """Its kernels are made of its graph by the schedules in `cpu` and `cuda`, but for those that it
    has of its own. Where a schedule does not take the graph, as for axes that lie apart, it is
    called.

    The CPU's kernel has the bits of the graph run op by op. A GPU's sums add what a thread has,
    then what its team has, in the data's type: not in the order of the op `sum`.
    """

    exact_on = ("cpu",)
    traits = Traits(as_stored=True)

    @classmethod
    def cpu(cls, *args: Arg | None, **attrs) -> list[Launch]:
        from opstep.kernels.schedules.cpu.launching import launch_composite

        return launch_composite(cls, args, attrs)

    @classmethod
    def cuda(cls, *args: Arg | None, **attrs) -> list[Grid]:
        from opstep.kernels.schedules.cuda.launching import launch_composite

        return launch_composite(cls, args, attrs)

    @classmethod
    def has_kernel(cls, gpu: bool, types: tuple[TensorType | None, ...], attrs: dict) -> bool:
        return _fits(cls, gpu, types, tuple(attrs.items()))


@lru_cache(1024)
def _fits(
    op: type[RowComposite], gpu: bool, types: tuple[TensorType | None, ...], attrs: tuple
) -> bool:
    from opstep.kernels.schedules.row_graph import Unfit

    results = op.infer(*types, **dict(attrs))
    made = [results] if isinstance(results, TensorType) else results
    args = [t and Arg(t, k, t.dtype) for k, t in enumerate((*types, *made))]
    try:
        (op.cuda if gpu else op.cpu)(*args, **dict(attrs))
    except Unfit:
        return False
    return True
