"""Attention, forward and backward, beside PyTorch's: for halves its flash attention and cuDNN's.

    PYTHONPATH=. python benchmarks/gpu/attention.py --tiles

measures our kernels alone, with one tile after another.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from gpu_timing import op_work, timed
from kernels import DTYPE
from rows import Row, at_least, group, plain
from torch.nn.attention import SDPBackend, sdpa_kernel

from opstep.api.devices import Setup, device_named
from opstep.kernels.rows import cuda_attention_grad_halves, cuda_attention_halves
from opstep.kernels.rows.cuda_attention_tiles import FlashTile

SIZES = [  # element type, features, lengths; batches and heads hold 16384 rows in all
    ("bf16", 64, (512, 1024, 2048, 4096, 8192)),
    ("bf16", 128, (512, 1024, 2048, 4096, 8192)),
    ("f32", 64, (512, 1024, 2048)),
]
TOKENS, WIDTH = 16384, 2048
OP = "scaled_dot_product_attention"
PEERS = {  # what PyTorch computes it by
    "bf16": {
        "PyTorch's flash attention": SDPBackend.FLASH_ATTENTION,
        "cuDNN's attention": SDPBackend.CUDNN_ATTENTION,
    },
    "f32": {"PyTorch's attention": SDPBackend.EFFICIENT_ATTENTION},
}
BARRED = "PyTorch's flash attention"
TIMES, TIMES_OF_GRADIENTS = 1.3, 1.5  # that ours may take as long


def by_turns(calls: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Seconds of each, the mean of two medians."""
    turns = [{name: timed(call) for name, call in calls.items()} for _ in range(2)]
    return {name: (turns[0][name] + turns[1][name]) / 2 for name in calls}


@group("attention")
def attention() -> Iterator[Row]:
    on = device_named("cuda", Setup(None, "numba", False))
    for dtype, features, lengths in SIZES:
        for length in lengths:
            for causal in (False, True):
                shape = (TOKENS // length, WIDTH // features, length, features)
                yield from _rows(on, dtype, shape, causal)
                torch.cuda.empty_cache()


def _rows(on, dtype: str, shape: tuple[int, ...], causal: bool) -> Iterator[Row]:
    batch, heads, length, features = shape
    q, k, v, gy = (torch.randn(shape, device="cuda").to(DTYPE[dtype]) for _ in range(4))
    flops = 4 * batch * heads * length**2 * features / (2 if causal else 1)
    what = f"{dtype} L {length} d {features}{' causal' if causal else ''}"
    ours, _ = op_work(OP, [q, k, v], on=on, causal=causal)
    calls: dict[str, Callable[[], object]] = {"ours": ours}
    backward: dict[str, Callable[[], object]] = {}
    backward["ours"], _ = op_work(f"{OP}_grad", [q, k, v, gy], on=on, causal=causal)
    operands = [t.requires_grad_() for t in (q, k, v)]
    for peer, backend in PEERS[dtype].items():

        def forward(backend: SDPBackend = backend) -> torch.Tensor:
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

        y = forward()
        calls[peer] = torch.no_grad()(forward)
        backward[peer] = lambda y=y: torch.autograd.grad(y, operands, gy, retain_graph=True)
    yield from _beside(f"attention, {what}", calls, flops, TIMES)
    yield from _beside(f"its gradients, {what}", backward, 2.5 * flops, TIMES_OF_GRADIENTS)


def _beside(what: str, calls: dict[str, Callable[[], object]], flops: float, times: float):
    rates = {name: flops / seconds / 1e12 for name, seconds in by_turns(calls).items()}
    ours = rates.pop("ours")
    for peer, rate in rates.items():
        if peer == BARRED:
            yield at_least(1 / times, what, ours, "TFLOP/s", peer, rate)
        else:
            yield plain(what, ours, "TFLOP/s", peer, rate)


def _tiles(features: int) -> Iterator[FlashTile]:
    for held in (64, 128, 192):
        for streamed in (64, 128):
            for groups in (True, False):
                yield FlashTile(held, streamed, features, features, groups)


def _by_tiles() -> Iterator[str]:
    """What each tile takes: what `tile_for` of both modules should choose."""
    on = device_named("cuda", Setup(None, "numba", False))
    for features in (64, 128):
        for length in (1024, 8192):
            shape = (TOKENS // length, WIDTH // features, length, features)
            operands = [torch.randn(shape, device="cuda").bfloat16() for _ in range(4)]
            flops = 4 * TOKENS * WIDTH * length
            modules: Any = (
                (cuda_attention_halves, OP, 3, 1.0),
                (cuda_attention_grad_halves, f"{OP}_grad", 4, 2.5),
            )
            for module, name, count, times in modules:
                chosen = module.tile_for
                for tile in _tiles(features):
                    if count == 4 and tile.held > 128:
                        continue  # which has no place for them
                    if module.shared_bytes(tile) > 227 << 10:
                        continue
                    module.tile_for = lambda *_, tile=tile: tile
                    try:
                        ours, _ = op_work(name, operands[:count], on=on)
                        rate = f"{times * flops / timed(ours) / 1e12:7.1f} TFLOP/s"
                    except Exception as error:  # too many registers for a block, say
                        rate = f"{type(error).__name__}: {error}"[:100]
                    finally:
                        module.tile_for = chosen
                    yield f"{name} L {length} {rate}  {tile}"


if __name__ == "__main__":
    if sys.argv[1:] == ["--tiles"]:
        for line in _by_tiles():
            print(line, flush=True)
        sys.exit()
    for row in attention():
        print(row.what, f"{row.ours:.1f} {row.unit}, {row.peer_name} {row.peer:.1f}", flush=True)
