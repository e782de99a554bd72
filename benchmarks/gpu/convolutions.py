"""Convolutions of known networks and their gradients, beside cuDNN's, layer by layer."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from itertools import chain
from math import exp, log
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from gpu_timing import op_work
from kernels import DTYPE
from rows import Row, at_most, group

from opstep.api.devices import Setup, device_named
from opstep.runtime.device.cuda.choice.choice import Kernels
from opstep.runtime.device.cuda.choice.tuning import TuningTable
from opstep.runtime.device.cuda.device import CudaDevice

REPEATS = 10  # in a captured graph: of one call, much would be the host's
SAMPLES = 5
ROUNDING = {"f32": 1e-5, "bf16": 1e-2}  # of the largest element: by how much ours may differ


class Layer(NamedTuple):
    """A convolution with padding on both sides; images are square."""

    images: int
    channels: int
    size: int
    filters: int
    kernel: int
    stride: int = 1
    padding: int = 0
    groups: int = 1

    def __str__(self) -> str:
        kernel = f"{self.kernel}x{self.kernel}" + (f"/{self.stride}" if self.stride > 1 else "")
        depthwise = " depthwise" if self.groups > 1 else ""
        shape = f"{self.images}x{self.channels}x{self.size}^2"
        return f"{shape} {kernel} to {self.filters}{depthwise}"


def bottlenecks(images: int) -> Iterator[Layer]:
    """ResNet-50's."""
    yield Layer(images, 3, 224, 64, 7, 2, 3)
    wide, size = 64, 56
    for narrow, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        yield Layer(images, wide, size, narrow, 1)
        yield Layer(images, narrow, size, narrow, 3, stride, 1)
        yield Layer(images, wide, size, 4 * narrow, 1, stride)
        size, wide = size // stride, 4 * narrow
        yield Layer(images, narrow, size, wide, 1)
        yield Layer(images, wide, size, narrow, 1)
        yield Layer(images, narrow, size, narrow, 3, 1, 1)


def basic_blocks(images: int) -> Iterator[Layer]:
    """What ResNet-18 has of its own."""
    for wide, size in ((64, 56), (128, 28), (256, 14)):
        yield Layer(images, wide, size, 2 * wide, 3, 2, 1)


def vgg(images: int) -> Iterator[Layer]:
    sizes = ((3, 64, 224), (64, 64, 224), (64, 128, 112), (128, 128, 112), (128, 256, 56))
    for channels, filters, size in (*sizes, (256, 256, 56), (256, 512, 28), (512, 512, 28)):
        yield Layer(images, channels, size, filters, 3, 1, 1)


def others() -> Iterator[Layer]:
    """AlexNet, U-Net, ConvNeXt-T, MobileNet."""
    yield Layer(64, 3, 224, 64, 11, 4, 2)
    yield Layer(64, 64, 27, 192, 5, 1, 2)
    yield Layer(64, 48, 64, 16, 3, 1, 1)
    for channels, size in ((96, 56), (192, 28), (384, 14)):
        yield Layer(32, channels, size, channels, 7, 1, 3, channels)
    yield Layer(32, 192, 28, 192, 3, 1, 1, 192)


NETWORKS = {  # each layer once
    "ResNet-50 b32": tuple(dict.fromkeys(bottlenecks(32))),
    "ResNet-18 b32": tuple(basic_blocks(32)),
    "VGG-16 b16": tuple(vgg(16)),
    "others": tuple(others()),
}
LAYERS = tuple(chain.from_iterable(NETWORKS.values()))
KINDS = {  # our op: what PyTorch is to give, and the bars for `--kernels numba`
    "conv2d": ("forward", {}),
    "conv2d_input_grad": ((True, False, False), {"f32": 1.3, "bf16": 1.5}),
    "conv2d_weight_grad": ((False, True, False), {"f32": 1.3, "bf16": 1.5}),
}
WORST = 2.5  # times cuDNN's, of any layer


Calls = tuple[Callable[[], Any], torch.Tensor, Callable[[], Any], Callable[[], Any]]


def calls(op: str, layer: Layer, dtype: str, on: Any) -> Calls:
    """Our call, what it writes, what PyTorch gives in f64, and its call, of the same tensors."""
    random = {"device": "cuda", "dtype": DTYPE[dtype]}
    x = torch.randn(layer.images, layer.channels, layer.size, layer.size, **random)
    w = torch.randn(
        layer.filters, layer.channels // layer.groups, layer.kernel, layer.kernel, **random
    )
    pair = [layer.stride] * 2, [layer.padding] * 2, [1, 1]
    rest = (*pair, False, [0, 0], layer.groups)
    gy = torch.randn_like(torch.ops.aten.convolution(x, w, None, *rest))
    attrs: dict[str, Any] = {"groups": layer.groups}
    attrs |= {"stride": (layer.stride,) * 2, "padding": (layer.padding,) * 2}
    wanted, _ = KINDS[op]
    if op == "conv2d":
        operands = [x, w]
    elif op == "conv2d_input_grad":
        operands = [gy, w]
        attrs["size"] = tuple(x.shape[2:])
    else:
        operands = [gy, x]
        attrs["kernel"] = tuple(w.shape[2:])
    ours, (found,) = op_work(op, operands, on=on, **attrs)

    def theirs(*tensors: torch.Tensor) -> torch.Tensor:
        gy_, x_, w_ = tensors or (gy, x, w)
        if op == "conv2d":
            return torch.ops.aten.convolution(x_, w_, None, *rest)
        back = torch.ops.aten.convolution_backward(gy_, x_, w_, None, *rest, wanted)
        return back[wanted.index(True)]

    def exact() -> torch.Tensor:
        return theirs(gy.double(), x.double(), w.double())

    return ours, found, exact, theirs


def microseconds(call: Callable[[], Any]) -> Callable[[], float]:
    """A sampler of a call's time, from a captured graph of several."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):  # PyTorch tries cuDNN's engines
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(REPEATS):
            call()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def sample(kept: Any = call) -> float:  # whose memory the graph works on
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e3 / REPEATS

    sample()
    return sample


def beside(op: str, layer: Layer, dtype: str, kernels: str) -> tuple[float, float]:
    """Microseconds of ours and of PyTorch's, by turns."""
    on = device_named("cuda", Setup(None, kernels, False))
    ours, found, exact, theirs = calls(op, layer, dtype, on)
    ours()
    expected = exact()
    off = ((found.double() - expected).abs().max() / expected.abs().max()).item()
    if not off <= ROUNDING[dtype]:
        raise ValueError(f"{op}, {dtype}, {layer}: differs by {off:.1e} of the largest element")
    samplers = [microseconds(call) for call in (ours, theirs)]
    samples = [[sample() for sample in samplers] for _ in range(SAMPLES)]
    mine, peer = (median(times) for times in zip(*samples, strict=True))
    return mine, peer


class Unknown(CudaDevice):
    """A GPU without a table of times."""

    def __init__(self) -> None:
        self._own_table = TuningTable(Path(tempfile.mkdtemp()) / "gpu.json", "")
        super().__init__()

    def _table(self) -> TuningTable:
        return self._own_table


class Chosen(NamedTuple):
    """Microseconds of an op by each choice of kernels."""

    what: str
    numba: float
    vendor: float
    auto: float

    @property
    def best(self) -> float:
        return min(self.numba, self.vendor)

    def __str__(self) -> str:
        times = zip(self._fields[1:], self[1:], strict=True)
        return f"{self.what:68}" + ", ".join(f"{name} {us:8.1f} µs" for name, us in times)


def chosen(layers: tuple[Layer, ...], dtype: str) -> Iterator[Chosen]:
    """The times of each op of some layers; `auto` has not seen any of them before."""
    gpu = Unknown()
    on = [gpu.with_kernels(Kernels(name)) for name in Chosen._fields[1:]]
    for layer in layers:
        for op in KINDS:
            samplers = [microseconds(calls(op, layer, dtype, one)[0]) for one in on]
            found = [[sample() for sample in samplers] for _ in range(SAMPLES)]
            yield Chosen(f"{op} of {layer}", *map(median, zip(*found, strict=True)))
            torch.cuda.empty_cache()


@group("choices of kernels")
def choices() -> Iterator[Row]:
    """`auto`, as it chooses when it sees an op for the first time, beside the better of both."""
    peer = "the better of numba and vendor"
    for dtype in DTYPE:
        for network, layers in NETWORKS.items():
            found = list(chosen(layers, dtype))
            print(*found, sep="\n")
            auto, best = sum(c.auto for c in found), sum(c.best for c in found)
            what = f"{network}, {dtype}, {len(found)} convolutions and gradients, --kernels auto"
            yield at_most(1.03, what, auto / 1e3, "ms", peer, best / 1e3)
            worst = max(found, key=lambda c: c.auto / c.best)
            yield at_most(1.03, f"{what}: worst, {worst.what}", worst.auto, "µs", peer, worst.best)


def geometric_mean(ratios: list[float]) -> float:
    return exp(sum(map(log, ratios)) / len(ratios))


@group("convolutions")
def convolutions() -> Iterator[Row]:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    for dtype in DTYPE:
        for op, (_, bars) in KINDS.items():
            ratios: dict[Layer, float] = {}
            times: list[tuple[float, float]] = []
            for layer in LAYERS:
                ours, theirs = beside(op, layer, dtype, "numba")
                ratios[layer] = ours / theirs
                times.append((ours, theirs))
                print(f"{op:18} {dtype:4} {layer!s:40} {ours:8.1f} µs, cuDNN {theirs:8.1f}")
                torch.cuda.empty_cache()
            mean, bar = geometric_mean(list(ratios.values())), bars.get(dtype)
            total, peer = map(sum, zip(*times, strict=True))
            what = f"{op}, {dtype}, {len(LAYERS)} layers, --kernels numba"
            yield Row(f"{what}: in all", total / 1e3, "ms", "cuDNN", peer / 1e3)
            limit = f"≤ {bar:g}x" if bar else ""
            yield Row(
                f"{what}: geometric mean", mean, "x", "cuDNN", 1.0, limit, bar and mean <= bar
            )
            worst = max(ratios, key=lambda layer: ratios[layer])
            yield Row(
                f"{what}: worst, {worst}", ratios[worst], "x", "cuDNN", 1.0,
                f"≤ {WORST:g}x" if bar else "", bar and ratios[worst] <= WORST,
            )  # fmt: skip
