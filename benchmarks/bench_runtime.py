"""The interpreter's own cost, small ops, branches on streams, and memory with reuse."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from harness import Measured, Timed, at_most, bench, times_faster, times_peer

import opstep
from opstep.api.inputs import conform
from opstep.api.settings import RunSettings
from opstep.runtime.driving import drive

EXAMPLES = Path(__file__).parent.parent / "examples"


def bound(
    program, graph, inputs, device="cpu", threads=None, recording=None, fuse=True, **switches
):  # fmt: skip
    """A callable that runs the graph once, inputs in place: what a training loop repeats."""
    settings = RunSettings(device=device, threads=threads, **switches)
    plan = None if fuse else unfused(program, graph, inputs, settings)
    running = program._running(graph, inputs, settings, recording=recording, plan=plan)
    job = running.__enter__()

    def run(running=running):  # which ends when it is dropped
        drive(job.context.run(job.binding))
        if recording:
            job.step_done()

    return run


def unfused(program, graph, inputs, settings):
    """A plan in which each op has a launch of its own, whatever it computes."""
    _, types = conform(program.graph(graph), inputs, program.module.source)
    return program.plan(
        graph, types, settings.policy, settings.device, setup=settings.setup, fuse=False
    )


def chain(length: int, size: int, op: str = "add(x{}, b)") -> str:
    lines = [f"  x{k + 1} = {op.format(k)}" for k in range(length)]
    head = f"graph chain(x0: f32[{size}], b: f32[{size}]) -> f32[{size}] {{"
    return "\n".join([head, *lines, f"  return x{length}", "}", ""])


@bench(
    "interpreter loop, null device, 10,000-op chain, an op",
    peer="torch.fx.Interpreter, do-nothing nodes",
    bars=[at_most(1.0, "µs"), times_faster(4)],
)
def loop():
    import torch.fx

    length = 10_000
    program = opstep.loads(chain(length, 8))
    zeros = np.zeros(8, np.float32)
    ours = bound(program, "chain", {"x0": zeros, "b": zeros}, device="null", fuse=False)

    graph = torch.fx.Graph()
    node = graph.placeholder("x")
    for _ in range(length):
        node = graph.call_function(do_nothing, (node,))
    graph.output(node)
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    interpreter = torch.fx.Interpreter(module)
    return Timed(ours, lambda: interpreter.run(1), per=length, unit="µs")


def do_nothing(x):
    return x


@bench(
    "1,000-op chain of f32[1024] adds, an op",
    peer="PyTorch eager, one thread",
    bars=[times_peer(1.0)],
)
def adds():
    import torch

    length, size = 1000, 1024
    program = opstep.loads(chain(length, size))
    x, b = np.ones((2, size), np.float32)
    ours = bound(program, "chain", {"x0": x, "b": b}, threads=1, fuse=False)
    first, second = torch.from_numpy(x), torch.from_numpy(b)

    def peer():
        y = first
        for _ in range(length):
            y = y + second
        return y

    return Timed(ours, one_thread(peer), per=length, unit="µs")


def one_thread(call):
    """`call` with PyTorch on one thread; what it was before is restored."""
    import torch

    def run():
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return call()
        finally:
            torch.set_num_threads(before)

    return run


def branching(width: int, depth: int, size: int) -> str:
    """`width` chains that share their input and meet at the end."""
    lines, ends = [], []
    for w in range(width):
        value = "x"
        for d in range(depth):
            lines.append(f"  b{w}_{d} = tanh({value})")
            value = f"b{w}_{d}"
        ends.append(value)
    total = ends[0]
    for w, end in enumerate(ends[1:]):
        lines.append(f"  s{w} = add({total}, {end})")
        total = f"s{w}"
    head = f"graph branches(x: f32[{size}]) -> f32[{size}] {{"
    return "\n".join([head, *lines, f"  return {total}", "}", ""])


@bench("independent branches, two streams", peer="one stream", bars=[times_faster(1.6)])
def branches():
    """Two branches of 64 ops too small to be cut among lanes (16,384 elements)."""
    program = opstep.loads(branching(2, 64, 16384))
    inputs = {"x": np.linspace(-2, 2, 16384, dtype=np.float32)}
    two = bound(program, "branches", inputs, streams=2)
    one = bound(program, "branches", inputs, streams=1)
    return Timed(two, one, unit="ms", rounds=31)


@bench(
    "memory with reuse, {}, arena",
    peer="largest sum of live tensors",
    bars=[times_peer(1.1)],
    over=["alexnet batch 1", "alexnet batch 32", "unet batch 1", "unet batch 32"],
)
def memory(which: str):
    name, _, batch = which.split()
    program = opstep.load(EXAMPLES / f"{name}.opg")
    graph = next(iter(program.graphs)) if len(program.graphs) == 1 else "main"
    plan = program.plan(graph, symbols={"N": int(batch)})
    return Measured(plan.arena / 2**20, plan.peak / 2**20, "MiB")
