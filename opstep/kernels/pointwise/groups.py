"""Where a group of elementwise ops (`plan.fusing`) finds its kernels, once one is launched."""

from __future__ import annotations

from opstep.runtime.device.launch import Arg, Grid, Launch
from opstep.runtime.plan.body import Body, fused, measured
from opstep.runtime.plan.epilogues import Epilogue, epilogued


def _cpu(*args: Arg, body: Body) -> Launch:
    from opstep.kernels.pointwise.fused import launch

    return launch(args, body, on_gpu=False)


def _cuda(*args: Arg, body: Body) -> Grid | Launch:
    from opstep.kernels.pointwise.cuda_fused import launch_on_gpu

    return launch_on_gpu(args, body)


def _measured_cuda(*args: Arg, body: Body, registers: tuple[int, ...]) -> Grid:
    from opstep.kernels.pointwise.cuda_measured import launch_measured

    return launch_measured(args, body, registers)


def _is_measured(*args: Arg, body: Body, registers: tuple[int, ...]) -> bool:
    from opstep.kernels.pointwise.cuda_measured import is_measured

    return is_measured(args, body, registers)


def _epilogued_cuda(*args: Arg, epilogue: Epilogue) -> list[Grid | Launch]:
    from opstep.kernels.pointwise.cuda_epilogue import epilogued_on_gpu

    return epilogued_on_gpu(*args, epilogue=epilogue)


def _is_taken(*args: Arg, epilogue: Epilogue) -> bool:
    from opstep.kernels.pointwise.cuda_epilogue import is_taken

    return is_taken(*args, epilogue=epilogue)


fused.cpu = _cpu
fused.cuda = _cuda
measured.cuda = _measured_cuda
measured.is_taken = _is_measured
epilogued.cuda = _epilogued_cuda
epilogued.is_taken = _is_taken
