"""Networks of families that kernels were not tuned on, through `torch.compile(backend="opstep")` on
a GPU, beside eager mode: graph attention, a 3-D U-Net, a recommender of bags, a U-Net of a
diffusion model, and DeepLabv3. Times that kernels of a call keep the GPU busy, by PyTorch's
profiler, and of calls; how far results are off those in f64, ours and eager mode's.

    PYTHONPATH=.:benchmarks python benchmarks/gpu/families.py --only "GAT|DLRM" --list
"""

from __future__ import annotations

import argparse
import copy
import re
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from op_sweep import difference, kernels_ms
from torch import nn

import opstep  # noqa: F401 - registers the backend

Made = tuple[nn.Module, tuple[torch.Tensor, ...]]


def conv_block(rank: int, channels: int, out: int) -> nn.Sequential:
    conv, norm = (nn.Conv3d, nn.BatchNorm3d) if rank == 3 else (nn.Conv2d, nn.BatchNorm2d)
    return nn.Sequential(
        *(conv(channels, out, 3, padding=1), norm(out), nn.ReLU()),
        *(conv(out, out, 3, padding=1), norm(out), nn.ReLU()),
    )


class UNet3d(nn.Module):
    def __init__(self, widths=(16, 32, 64, 128)):
        super().__init__()
        self.down = nn.ModuleList(
            conv_block(3, a, b) for a, b in zip((1, *widths), widths, strict=False)
        )
        ups = list(zip(widths[:0:-1], widths[-2::-1], strict=True))
        self.up = nn.ModuleList(conv_block(3, a + b, b) for a, b in ups)
        self.head = nn.Conv3d(widths[0], 2, 1)

    def forward(self, x):
        skips = []
        for k, block in enumerate(self.down):
            x = block(x if k == 0 else F.max_pool3d(x, 2))
            skips.append(x)
        for block, skip in zip(self.up, reversed(skips[:-1]), strict=True):
            x = F.interpolate(x, scale_factor=2, mode="trilinear", align_corners=False)
            x = block(torch.cat([x, skip], 1))
        return self.head(x)


class GraphAttention(nn.Module):
    def __init__(self, features: int, heads: int, out: int):
        super().__init__()
        self.heads, self.out = heads, out
        self.project = nn.Linear(features, heads * out, bias=False)
        self.source = nn.Parameter(torch.randn(heads, out) * 0.1)
        self.target = nn.Parameter(torch.randn(heads, out) * 0.1)

    def forward(self, x, edges):
        source, target = edges[0], edges[1]
        h = self.project(x).view(-1, self.heads, self.out)
        score = (h * self.source).sum(-1)[source] + (h * self.target).sum(-1)[target]
        weight = F.leaky_relu(score, 0.2).clamp(max=20).exp()
        total = torch.zeros_like(h[..., 0]).index_add(0, target, weight)
        weight = weight / (total[target] + 1e-9)
        sums = torch.zeros_like(h).index_add(0, target, h[source] * weight[..., None])
        return sums.flatten(1)


class GAT(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = GraphAttention(128, 8, 16), GraphAttention(128, 1, 40)

    def forward(self, x, edges):
        return self.second(F.elu(self.first(x, edges)), edges)


class DLRM(nn.Module):
    def __init__(self):
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(100_000, 64, mode="sum") for _ in range(16))
        self.dense = nn.Sequential(nn.Linear(13, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(200, 256), nn.ReLU(), nn.Linear(256, 1))

    def forward(self, dense, indices):
        x = self.dense(dense)
        all_of = torch.stack([x, *(bag(indices[k]) for k, bag in enumerate(self.bags))], 1)
        pairs = torch.bmm(all_of, all_of.transpose(1, 2))
        i, j = torch.tril_indices(17, 17, -1, device=x.device)
        return self.top(torch.cat([x, pairs[:, i, j]], 1))


class ResBlock(nn.Module):
    def __init__(self, channels: int, out: int):
        super().__init__()
        self.norms = nn.ModuleList([nn.GroupNorm(16, channels), nn.GroupNorm(16, out)])
        self.convs = nn.ModuleList(
            [nn.Conv2d(channels, out, 3, 1, 1), nn.Conv2d(out, out, 3, 1, 1)]
        )
        self.time = nn.Linear(128, out)
        self.skip = nn.Conv2d(channels, out, 1) if channels != out else nn.Identity()

    def forward(self, x, t):
        h = self.convs[0](F.silu(self.norms[0](x))) + self.time(t)[:, :, None, None]
        return self.skip(x) + self.convs[1](F.silu(self.norms[1](h)))


class Diffusion(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 64, 3, 1, 1), nn.Conv2d(64, 3, 3, 1, 1)
        self.down = nn.ModuleList([ResBlock(64, 64), ResBlock(64, 128), ResBlock(128, 256)])
        self.shrink = nn.ModuleList(nn.Conv2d(c, c, 3, 2, 1) for c in (64, 128))
        self.norm, self.attend = (
            nn.GroupNorm(16, 256),
            nn.MultiheadAttention(256, 4, batch_first=True),
        )
        self.up = nn.ModuleList([ResBlock(384, 128), ResBlock(192, 64)])
        self.end = nn.GroupNorm(16, 64)

    def forward(self, x, t):
        a = self.down[0](self.first(x), t)
        b = self.down[1](self.shrink[0](a), t)
        c = self.down[2](self.shrink[1](b), t)
        flat = self.norm(c).flatten(2).transpose(1, 2)
        c = c + self.attend(flat, flat, flat, need_weights=False)[0].transpose(1, 2).view_as(c)
        b = self.up[0](torch.cat([F.interpolate(c, scale_factor=2), b], 1), t)
        a = self.up[1](torch.cat([F.interpolate(b, scale_factor=2), a], 1), t)
        return self.last(F.silu(self.end(a)))


def indices(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(high, shape, device="cuda")


def gat() -> Made:
    return GAT(), (torch.randn(20_000, 128, device="cuda"), indices(20_000, 2, 200_000))


def unet_3d() -> Made:
    return UNet3d(), (torch.randn(2, 1, 64, 64, 64, device="cuda"),)


def dlrm() -> Made:
    return DLRM(), (torch.randn(2048, 13, device="cuda"), indices(100_000, 16, 2048, 10))


def diffusion() -> Made:
    return Diffusion(), (
        torch.randn(16, 3, 64, 64, device="cuda"),
        torch.randn(16, 128, device="cuda"),
    )


def deeplab() -> Made:
    from torchvision.models.segmentation import deeplabv3_resnet50

    class Scores(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = deeplabv3_resnet50(weights=None, weights_backbone=None)

        def forward(self, x):
            return self.model(x)["out"]

    return Scores(), (torch.randn(8, 3, 256, 256, device="cuda"),)


NETWORKS: dict[str, Callable[[], Made]] = {
    "GAT": gat, "U-Net 3-D": unet_3d, "DLRM": dlrm, "diffusion U-Net": diffusion,
    "DeepLabv3": deeplab,
}  # fmt: skip


def waited_ms(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e3


def measure(name: str, dtype: torch.dtype, trained: bool, listed: bool) -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    model, inputs = NETWORKS[name]()
    model = model.to("cuda", dtype)
    inputs = tuple(t.to(dtype) if t.is_floating_point() else t for t in inputs)
    compiled = torch.compile(model, backend="opstep", dynamic=False)

    state = copy.deepcopy(model.state_dict())

    def forward(of: nn.Module, given=inputs) -> list[torch.Tensor]:
        with torch.no_grad():
            return [of(*given)]

    def training(of: nn.Module, given=inputs) -> list[torch.Tensor]:
        of.zero_grad(set_to_none=True)
        found = of(*given)
        (found if found.dtype is torch.float64 else found.float()).square().mean().backward()
        return [p.grad for p in of.parameters()]

    run = training if trained else forward
    if name == "DeepLabv3" and not trained:
        model.eval()
    calls = [lambda: run(compiled), lambda: run(model)]
    found = [[t.detach().clone() for t in call()] for call in calls]
    exact = copy.deepcopy(model).double()
    exact.load_state_dict(state)
    wide = [t.double() if t.is_floating_point() else t for t in inputs]
    true = [t.detach() for t in (training if trained else forward)(exact, wide)]
    off = [difference(of, true) for of in found]
    kernels = [kernels_ms(call, listed=listed) for call in calls]
    for call in calls:
        waited_ms(call)
    samples = [[waited_ms(call) for call in calls] for _ in range(9)]
    times = [statistics.median(of_one) for of_one in zip(*samples, strict=True)]
    print(
        f"{name + (', training' if trained else ', forward'):28} {str(dtype)[6:]:9}"
        f" kernels {kernels[0] / kernels[1]:6.2f}x {kernels[0]:8.3f} of {kernels[1]:8.3f} ms"
        f"  call {times[0] / times[1]:6.2f}x {times[0]:8.3f} of {times[1]:8.3f} ms"
        f"  off {off[0]:.1e}, eager {off[1]:.1e}",
        flush=True,
    )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--only", default="", help="a regular expression of names")
    options.add_argument("--dtype", nargs="*", default=["float32", "bfloat16"])
    options.add_argument("--list", action="store_true", help="kernels, by their time")
    given = options.parse_args()
    warnings.simplefilter("ignore")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    for name in NETWORKS:
        for dtype in given.dtype if re.search(given.only, name) else ():
            for trained in (False, True):
                try:
                    measure(name, getattr(torch, dtype), trained, given.list)
                except Exception as e:
                    print(f"{name}, {dtype}: {type(e).__name__}: {str(e)[:300]}", flush=True)


if __name__ == "__main__":
    main()
