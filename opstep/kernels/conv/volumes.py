"""Convolutions of volumes on CUDA, by the kernels of images.

What filters see along the depth is laid out as channels: volumes [N, C, D, H, W] become images
[N*D', C*T, H, W], where channel (c, t) of image (n, z) is the plane of channel c that output z sees
at place t of a filter, or zeros. Filters [K, C/groups, T, R, S] are [K, C/groups*T, R, S] in the
same memory. So a convolution of volumes is one of these images, and so are its derivatives. Volumes
take turns where their images would take more than `_ROOM`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from functools import cache
from math import prod

from opstep.kernels.conv import cuda_conv as gpu
from opstep.kernels.conv.correlation import geometry_of
from opstep.kernels.conv.cuda_blocks import shares_added
from opstep.kernels.conv.cuda_direct import cleared
from opstep.kernels.conv.windows import LINE, Window
from opstep.kernels.pointwise.cuda_offsets import LIMIT
from opstep.runtime.device.cuda.compiling.names import cuda, div32, real
from opstep.runtime.device.launch import Arg, Grid, Held, Launch, Scratch
from opstep.runtime.device.source import Intrinsic

_ROOM = 1 << 30  # bytes of images
_THREADS = 256

Launches = list[Grid | Launch]


def correlate(
    x: Arg, w: Arg, bias: Arg | None, y: Arg, groups: int, views: Sequence[Window]
) -> Launches:
    """y [N, K, D', H', W'] from x [N, C, D, H, W] under filters w."""
    w = _filters(w)
    if _of_rows(views):
        g = geometry_of((LINE, views[2]), _rows(y).shape[2:])
        return [*gpu.correlate(_rows(x), w, bias, _rows(y), groups, g)]
    some, out = _at_once(x, views[0], y.shape[2]), y.shape[2]
    seen, see = _images(x, views[0], out, some)
    made = Held(y.dtype, (some * out, y.shape[1], *y.shape[3:]), y.stored)
    g = geometry_of(views[1:], y.shape[3:])
    convolved = gpu.correlate(seen, w, bias, made, groups, g)
    launches: Launches = []
    for n in range(0, x.shape[0], some):
        swapped = (some, out, y.shape[1], y.shape[1], prod(y.shape[3:]))
        back = _laid_out(made, 0, y, n * prod(y.shape[1:]), *swapped, LINE)
        launches += [see(n), *convolved, back]
    return launches


def gather_back(
    gy: Arg, w: Arg, bias: Arg | None, gx: Arg, views: Sequence[Window], groups: int
) -> Launches:
    """gx [N, C, D, H, W]: what each element receives from gy through filters w."""
    if not gx.size:
        return []
    w = _filters(w)
    if _of_rows(views):
        return gpu.gather_back(_rows(gy), w, bias, _rows(gx), LINE, views[2], groups)
    deep, out, (channels, depth, *plane) = views[0], gy.shape[2], gx.shape[1:]
    some = _at_once(gx, deep, out)
    seen, see = _images(gy, LINE, out, some)
    made = Held(gx.dtype, (some * out, channels * deep.kernel, *plane))  # pyright: ignore[reportArgumentType] - a number by now
    gathered = gpu.gather_back(seen, w, None, made, *views[1:], groups)
    size = some * prod(gx.shape[1:])
    launches: Launches = []
    for n in range(0, gx.shape[0], some):
        launches += [
            see(n),
            *gathered,
            Grid(
                *(add_depths(size >= LIMIT), made, bias or gx, gx, n * prod(gx.shape[1:])),
                *(_places(deep), deep.kernel, deep.stride, channels, depth, out, prod(plane)),
                *(bias is not None, size),
                grid=-(-size // _THREADS),
                block=_THREADS,
            ),
        ]
    return launches


def filter_gradients(gy: Arg, x: Arg, gw: Arg, groups: int, views: Sequence[Window]) -> Launches:
    """gw [K, C/groups, T, R, S] from gy [N, K, D', H', W'] and x [N, C, D, H, W]."""
    if not (gy.size and x.size):
        return [cleared(gw)] if gw.size else []
    into = _filters(gw)
    if _of_rows(views):
        g = geometry_of((LINE, views[2]), _rows(gy).shape[2:])
        return [*gpu.filter_gradients(_rows(gy), _rows(x), into, groups, g)]
    deep, out, g = views[0], gy.shape[2], geometry_of(views[1:], gy.shape[3:])
    some = _at_once(x, deep, out)
    turns = x.shape[0] // some
    (seen, see), (given, give) = _images(x, deep, out, some), _images(gy, LINE, out, some)
    part, parts = Held(gw.dtype, into.shape), Scratch(gw.dtype, turns * gw.size)
    made = gpu.filter_gradients(given, seen, into if turns == 1 else part, groups, g)
    launches: Launches = []
    for turn in range(turns):
        launches += [see(turn * some), give(turn * some), *made]
        if turns > 1:
            launches.append(_laid_out(part, 0, parts, turn * gw.size, 1, 1, 1, 1, gw.size, LINE))
    return [*launches, *shares_added(parts, None, gw, turns)]


def _of_rows(views: Sequence[Window]) -> bool:
    """Whether filters have one row of one plane: all rows of a volume are those of an image."""
    return all((v.kernel, v.stride, v.before, v.after) == (1, 1, 0, 0) for v in views[:2])


def _rows(x: Arg) -> Arg:
    """Volumes as such images, the same memory."""
    return _reshaped(x, (*x.shape[:2], x.shape[2] * x.shape[3], x.shape[4]))


def _filters(w: Arg) -> Arg:
    """Filters of volumes as those of images, the same memory."""
    return _reshaped(w, (w.shape[0], w.shape[1] * w.shape[2], *w.shape[3:]))


def _reshaped(a: Arg, shape: tuple[int, ...]) -> Arg:
    seen = copy(a)  # whatever kind of operand it is to the device
    seen.shape = shape
    return seen


def _at_once(x: Arg, deep: Window, out: int) -> int:
    """Volumes of a turn, as many in each."""
    n, each = x.shape[0], x.size // max(1, x.shape[0] * x.shape[2])
    room = _ROOM // max(1, each * deep.kernel * out * x.dtype.itemsize)  # pyright: ignore[reportOperatorIssue] - a number by now
    return next((some for some in range(min(n, room), 0, -1) if n % some == 0), 1)


def _images(x: Arg, deep: Window, out: int, some: int) -> tuple[Held, Callable[[int], Grid]]:
    """`some` volumes as images, and what makes those of the volumes from the n-th on."""
    sizes = (some, *x.shape[1:3], out, prod(x.shape[3:]))
    shape = (some * out, x.shape[1] * deep.kernel, *x.shape[3:])
    made = Held(x.dtype, shape, x.stored)  # pyright: ignore[reportArgumentType] - numbers by now
    return made, lambda n: _laid_out(x, n * prod(x.shape[1:]), made, 0, *sizes, deep)


def _places(deep: Window) -> tuple[int, ...]:
    return tuple(t * deep.dilation - deep.before for t in range(deep.kernel))  # pyright: ignore[reportArgumentType] - a number by now


def _laid_out(
    x: Arg | Held, x_start: int, y: Arg | Scratch, y_start: int, volumes: int, channels: int,
    depth: int, out: int, plane: int, deep: Window,
) -> Grid:  # fmt: skip
    wide = 16 // max(4, x.stored.itemsize)
    wide = wide if plane % wide == 0 else 1
    size = volumes * out * channels * deep.kernel * plane // wide  # pyright: ignore[reportOperatorIssue]
    return Grid(
        *(lay_out(wide, size >= LIMIT), x, y, x_start, y_start, _places(deep), deep.kernel),
        *(deep.stride, channels, depth, out, plane // wide, size),
        grid=-(-size // _THREADS),
        block=_THREADS,
    )


def _whole(a, b):
    return a // b


@cache
def lay_out(wide: int, far: bool):
    """The kernel for `wide` neighbours a thread; `far`: of 2**32 threads or more."""
    load, store, fill = (Intrinsic(name, wide) for name in ("load", "store", "fill"))
    over = _whole if far else div32

    def lay_depths(
        x, y, x_start, y_start, places, taps, stride, channels, depth, out, plane, size
    ):  # fmt: skip
        """y[n, z, c, t] = the plane z*stride + places[t] of x[n, c], or zeros; planes of so many
        times `wide` elements.
        """
        i = cuda.grid(1)
        if i < size:
            line = over(i, plane)
            above = over(line, taps)
            image = over(above, channels)
            n = over(image, out)
            d = (image - n * out) * stride + places[line - above * taps]
            if 0 <= d < depth:
                source = (n * channels + above - image * channels) * depth + d
                found = load(x, x_start + (source * plane + i - line * plane) * wide)
                store(y, y_start + i * wide, found)
            else:
                store(y, y_start + i * wide, fill(real(0)))

    return lay_depths


@cache
def add_depths(far: bool):
    over = _whole if far else div32

    def add_up(
        x, bias, y, y_start, places, taps, stride, channels, depth, out, plane, biased, size
    ):  # fmt: skip
        """y[n, c, d] = the sum of x[n, z, c, t] where z*stride + places[t] is d, in order of t."""
        i = cuda.grid(1)
        if i < size:
            line = over(i, plane)
            above = over(line, depth)
            n = over(above, channels)
            c = above - n * channels
            total = 0.0
            if biased:
                total += bias[c]
            for t in range(taps):
                seen = line - above * depth - places[t]
                z = over(seen, stride) if seen >= 0 else 0
                if seen >= 0 and z * stride == seen and z < out:
                    source = ((n * out + z) * channels + c) * taps + t
                    total += x[source * plane + i - line * plane]
            y[y_start + i] = total

    return add_up
