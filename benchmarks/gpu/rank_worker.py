"""What one of several ranks does in a benchmark of `ranks.py`: all measure by turns, and of each
sample the slowest rank's time counts. Rank 0 writes the rows.
"""

from __future__ import annotations

import ctypes
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parent), str(HERE)]

import known_models  # noqa: E402 - found by the line above
import torch  # noqa: E402
from rows import Row, at_least, at_most, plain  # noqa: E402

import opstep  # noqa: E402
from opstep.api.settings import RunSettings  # noqa: E402
from opstep.distributed.gloo import GlooTransport, joined  # noqa: E402
from opstep.distributed.gpus import device_of, meet  # noqa: E402
from opstep.distributed.place import place_in  # noqa: E402
from opstep.runtime.device.cuda.vendor.nccl import communicator_of  # noqa: E402
from opstep.runtime.driving import drive  # noqa: E402
from opstep.runtime.ir.mesh import WORLD, Group, Mesh  # noqa: E402

SIZES = (4 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20, 1 << 30)  # bytes
BATCHES = {"ResNet-50": 32, "GPT-2 124M": 8}  # of each GPU
STEPS = 3  # whose losses are compared
_open = ExitStack()  # jobs end with the process
_files = tempfile.TemporaryDirectory()  # from which weights are read when a step is bound


class Rank:
    """This process among the others. `gpu`: the device's name; `group`: PyTorch's NCCL."""

    def __init__(self, transport: GlooTransport, gpu: str):
        self.transport, self.gpu = transport, gpu
        self.world, self.number = transport.world, transport.rank
        torch.cuda.set_device(int(gpu.partition(":")[2] or 0))
        self.group = torch.distributed.new_group(backend="nccl")

    def slowest(self, seconds: float) -> float:
        return max(float(one[0]) for one in self.world.gather(np.array([seconds])))

    def by_turns(
        self, calls: dict[str, Callable[[], Any]], rounds: int = 15, warmup: int = 4,
        before: Callable[[], Any] = lambda: None,
    ) -> dict[str, float]:  # fmt: skip
        """Median seconds of each call, which ends when its work is done."""
        samples: dict[str, list[float]] = {name: [] for name in calls}
        for turn in range(-warmup, rounds):
            for name in list(calls) if turn % 2 == 0 else reversed(list(calls)):
                before()
                self.world.barrier()
                start = time.perf_counter()
                calls[name]()
                seconds = self.slowest(time.perf_counter() - start)
                if turn >= 0:
                    samples[name].append(seconds)
        return {name: statistics.median(found) for name, found in samples.items()}

    def bound(self, program: Any, graph: str, inputs: dict[str, Any]) -> tuple[Any, Callable]:
        """A job, and what runs it once and waits for its end."""
        meet(program, graph, self.gpu)
        running = program._running(graph, inputs, RunSettings(device=self.gpu, kernels="auto"))
        job = _open.enter_context(running)
        return job, lambda: drive(job.context.run(job.binding))


# --- all_reduce -----------------------------------------------------------------------------------


def sums(rank: Rank) -> Iterator[Row]:
    for nbytes in SIZES:
        most = 100 // int(np.log2(rank.world.size))  # of which sums are finite
        yield from _sums(rank, nbytes, max(4, min(most, (64 << 20) // nbytes)))
        _open.close()
        torch.cuda.empty_cache()


def _sums(rank: Rank, nbytes: int, count: int) -> Iterator[Row]:
    """So many in a row: in a program, by PyTorch, and as nccl-tests has it, in a loop."""
    elements = nbytes // 4
    lines = [f"  y{k + 1} = all_reduce(y{k})" for k in range(count)]
    head = f"graph main(y0: f32[{elements}]) -> f32[{elements}] {{"
    text, size = "\n".join([head, *lines, f"  return y{count}", "}"]), rank.world.size
    program = opstep.loads(text, ranks=size)
    x = np.random.default_rng(rank.number).standard_normal(elements, np.float32) * 1e-30
    job, ours = rank.bound(program, "main", {"y0": x})
    tensor = torch.from_numpy(x).cuda()
    given, taken = tensor.clone(), torch.empty_like(tensor)
    communicator = communicator_of(Group(Mesh(((WORLD, size),)), (WORLD,)))
    stream = torch.cuda.Stream()
    how = (ctypes.c_size_t(elements), 7, 0)

    def pytorch() -> None:
        for _ in range(count):
            torch.distributed.all_reduce(given, group=rank.group)
        torch.cuda.synchronize()

    def bare() -> None:
        for _ in range(count):
            communicator.call(
                "AllReduce", (tensor.data_ptr(), taken.data_ptr()), how, stream.cuda_stream
            )
        stream.synchronize()

    def before() -> None:
        given.copy_(tensor)  # sums would soon be infinite
        torch.cuda.synchronize()

    ours()
    bare()
    found = job.outputs()[0]
    expected = taken.cpu().numpy() * np.float32(float(size) ** (count - 1))
    if not np.allclose(found, expected, 0 if size == 2 else 1e-4, 0):
        raise ValueError(f"all_reduce of {nbytes:,} bytes: sums differ")
    times = rank.by_turns({"ours": ours, "pytorch": pytorch, "bare": bare}, 15, 4, before)
    us = {name: seconds / count * 1e6 for name, seconds in times.items()}
    what = f"all_reduce of {_size(nbytes)} on {size} GPUs, f32, in a program of {count}"
    yield at_most(1.05, what, us["ours"], "µs", "ncclAllReduce in a loop", us["bare"])
    yield plain(what, us["ours"], "µs", "PyTorch, NCCL", us["pytorch"])


def _size(nbytes: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if nbytes >= size:
            return f"{nbytes // size} {unit}"
    return f"{nbytes >> 10} KiB"


# --- steps ----------------------------------------------------------------------------------------


def steps(rank: Rank, name: str) -> Iterator[Row]:
    """A step of SGD in f32, each GPU with a batch of its own; nothing is drawn."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    batch = BATCHES[name]
    whole, x, labels = known_models.to_train(name, batch)
    x = x + 0.1 * rank.number if x.is_floating_point() else (x + rank.number) % 50_000
    given = {"x": x.numpy(), "labels": labels.numpy()}
    calls, losses = {}, {}
    alone = opstep.from_torch(whole, (x, labels))
    size = rank.world.size
    for way, ranks in (("alone", 1), ("ours", size)):
        program = _on_ranks(alone, ranks).with_optimizer(
            "main", "sgd", lr=0.01, data_parallel=True if ranks > 1 else None
        )
        job, calls[way] = rank.bound(program, "main_step", given)
        losses[way] = [(calls[way](), float(job.outputs()[0]))[1] for _ in range(STEPS)]
    calls["DDP"] = _ddp(rank, whole, x, labels)
    own = [float(calls["DDP"]()) for _ in range(STEPS)]
    losses["DDP"] = list(np.mean([*rank.world.gather(np.array(own))], 0))
    # batch norm makes much of the least difference between two orders of a sum
    np.testing.assert_allclose(losses["ours"], losses["DDP"], rtol=1e-2)
    ms = {way: s * 1e3 for way, s in rank.by_turns(calls, 11, 3).items()}
    what = f"{name} data parallel step on {size} GPUs, batch {batch} a GPU, f32"
    yield at_most(1.0, what, ms["ours"], "ms", "PyTorch DDP", ms["DDP"])
    each = 1e3 * batch
    yield at_least(
        0.925 * size, f"{name}, samples of {size} GPUs", size * each / ms["ours"], "a second",
        "one GPU", each / ms["alone"],
    )  # fmt: skip


def _on_ranks(program: Any, ranks: int) -> Any:
    """The program with its weights for so many ranks."""
    path = Path(_files.name) / f"{ranks}" / "model.opg"
    path.parent.mkdir(exist_ok=True)
    program.save(path)
    return opstep.load(path, ranks=ranks)


def _ddp(rank: Rank, whole: Any, x: Any, labels: Any) -> Callable[[], Any]:
    network = torch.nn.parallel.DistributedDataParallel(
        whole.cuda(), device_ids=[torch.cuda.current_device()], process_group=rank.group
    )
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    x, labels = x.cuda(), labels.cuda()

    def step() -> Any:
        optimizer.zero_grad(set_to_none=True)
        loss = network(x, labels)
        loss.backward()
        optimizer.step()
        torch.cuda.synchronize()
        return loss.detach()

    return step


def main() -> None:
    what, target = sys.argv[1:]
    place = place_in(os.environ)
    assert place is not None
    with joined(place, on_gpus=True) as transport:
        rank = Rank(transport, device_of("cuda", place))
        rows = [*(sums(rank) if what == "all_reduce" else steps(rank, what))]
        if rank.number == 0:
            Path(target).write_text(json.dumps([row._asdict() for row in rows]))
        _open.close()


if __name__ == "__main__":
    main()
