"""Where a group of elementwise ops (`plan.fusing`) finds its kernels, once one is launched."""

from __future__ import annotations

from opstep.runtime.device.launch import Arg, Grid, Launch
from opstep.runtime.plan.body import Body, fused


def _cpu(*args: Arg, body: Body) -> Launch:
    from opstep.kernels.pointwise.fused import launch

    return launch(args, body, on_gpu=False)


def _cuda(*args: Arg, body: Body) -> Grid | Launch:
    from opstep.kernels.pointwise.cuda_fused import launch_on_gpu

    return launch_on_gpu(args, body)


fused.cpu = _cpu
fused.cuda = _cuda
