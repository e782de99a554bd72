"""Attention, forward and backward, beside PyTorch's: its flash attention for halves.

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
from rows import Row, group, plain

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


def teraflops(seconds: float, flops: float) -> float:
    return flops / seconds / 1e12


def faster(ours: Callable[[], object], theirs: Callable[[], object]) -> tuple[float, float]:
    """Seconds of both, taken by turns."""
    first = timed(ours), timed(theirs)
    second = timed(ours), timed(theirs)
    return (first[0] + second[0]) / 2, (first[1] + second[1]) / 2


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

    def theirs():
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    name = "PyTorch's attention"
    mine, peer = (teraflops(s, flops) for s in faster(ours, theirs))
    yield plain(f"attention, {what}", mine, "TFLOP/s", name, peer)
    ours, _ = op_work(f"{OP}_grad", [q, k, v, gy], on=on, causal=causal)
    operands = [t.requires_grad_() for t in (q, k, v)]
    y = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    mine, peer = (
        teraflops(s, 2.5 * flops)
        for s in faster(ours, lambda: torch.autograd.grad(y, operands, gy, retain_graph=True))
    )
    yield plain(f"its gradients, {what}", mine, "TFLOP/s", name, peer)


def _tiles(features: int) -> Iterator[FlashTile]:
    for held in (64, 128, 192):
        for streamed in (64, 128):
            for groups in (True, False):
                for stages in (2, 1):
                    yield FlashTile(held, streamed, features, features, stages, groups)


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
                    if count == 4 and (tile.stages == 1 or tile.held > 128):
                        continue  # which has no place for them
                    if module.shared_bytes(tile) > 227 << 10:
                        continue
                    module.tile_for = lambda *_, tile=tile: tile
                    try:
                        ours, _ = op_work(name, operands[:count], on=on)
                        rate = f"{teraflops(timed(ours), times * flops):7.1f} TFLOP/s"
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
