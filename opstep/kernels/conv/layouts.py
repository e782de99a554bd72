"""Convolutions of images with channels last (`plan.layouts`): launches of `cuda_warpgroups`."""

from __future__ import annotations

from math import prod

from opstep.runtime.device.launch import Arg, Grid, Seen
from opstep.runtime.plan.layouts import Layout, channels_first, channels_last


def _cuda(*args: Arg, layout: Layout) -> list[Grid]:
    found = _launches(*args, layout=layout)
    assert found is not None, "a device takes the convolutions that it has kernels for"
    return found


def _is_taken(*args: Arg, layout: Layout) -> bool:
    return _launches(*args, layout=layout) is not None


def _launches(x, w, b, y, *, layout: Layout) -> list[Grid] | None:
    from opstep.kernels.conv import cuda_last

    attrs = dict(layout.attrs)
    first = Seen(x, channels_first(x.shape), 0, ()) if layout.x_last else x
    views = layout.op.views_of(w.shape[2:], attrs)
    if not prod(y.shape):
        return None
    last = x if layout.x_last else None
    return cuda_last.correlate(last, first, w, b, y, views, attrs["groups"], layout.y_last)


channels_last.cuda = _cuda
channels_last.is_taken = _is_taken
