"""All GPUs: collectives in a program and data parallel steps, beside PyTorch's and NCCL's own.

Each group starts a process for each GPU (`rank_worker.py`), which measure together.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rows import Row, group

from opstep.distributed.starting import Ended, start
from opstep.runtime.device.cuda.driver.driver import driver

WORKER = Path(__file__).with_name("rank_worker.py")


def together(what: str) -> Iterator[Row]:
    """The rows that rank 0 writes."""
    gpus = driver().cuDeviceGetCount()
    if gpus < 2:
        print("ranks: skipped, for there are no 2 GPUs")
        return
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "rows.json"
        try:
            start([sys.executable, str(WORKER), what, str(target)], gpus)
        except Ended as ended:
            for rank, said in ended.told.items():
                print(f"rank {rank}:", said[-2000:], file=sys.stderr)
            raise RuntimeError(f"rank {ended.rank} {ended.how}") from None
        for row in json.loads(target.read_text()):
            yield Row(**row)


@group("all_reduce")
def sums() -> Iterator[Row]:
    yield from together("all_reduce")


@group("data parallel, ResNet-50")
def pictures() -> Iterator[Row]:
    yield from together("ResNet-50")


@group("data parallel, GPT-2 124M")
def texts() -> Iterator[Row]:
    yield from together("GPT-2 124M")
