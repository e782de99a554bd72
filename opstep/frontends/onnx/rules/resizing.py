"""Resize and Upsample. What torch has, is an op; all else is done axis by axis, with numbers that
are computed at import: places of a gather, or a matrix.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from opstep.frontends.onnx.body import Body, Var, axis_of
from opstep.frontends.onnx.errors import Untranslatable
from opstep.frontends.onnx.rules.registry import rule
from opstep.frontends.onnx.values import Known, known, listed
from opstep.runtime.ir.dims import Expr
from opstep.runtime.ir.types import f32, i64

MOST = 2**24  # weights of one axis
MOST_PLACES = 2**20  # new elements of one axis, if a place is kept for each
OPS = {
    ("nearest", "asymmetric", "floor"): ("nearest", False),
    ("linear", "half_pixel", ""): ("linear", False),
    ("linear", "pytorch_half_pixel", ""): ("linear", False),
    ("linear", "align_corners", ""): ("linear", True),
}  # fmt: skip
LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}


@rule("Upsample", known=[1])
def upsample(b: Body, x, scales=None, *, mode="nearest", scales_=None, **more):
    """Places are those of the old formula."""
    given = listed(scales) if scales is not None else more.get("scales")
    if given is None:
        given = [1, 1, more["height_scale"], more["width_scale"]]
    mode = "linear" if "linear" in mode else "nearest"
    how = {"mode": mode, "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return resize(b, x, None, given, None, **how)


@rule("Resize", since=11, known=[1, 2, 3])
def resize(
    b: Body, x, roi=None, scales=None, sizes=None, *, antialias=0, axes=None,
    coordinate_transformation_mode="half_pixel", cubic_coeff_a=-0.75, exclude_outside=0,
    extrapolation_value=0.0, keep_aspect_ratio_policy="stretch", mode="nearest",
    nearest_mode="round_prefer_floor",
):  # fmt: skip
    rank = x.type.rank
    places = [axis_of(a, rank) for a in axes] if axes else list(range(rank))
    scale, size = _targets(x, places, scales, sizes, keep_aspect_ratio_policy)
    changed = [k for k in places if size[k] != x.shape[k] or scale[k] != 1]
    if coordinate_transformation_mode == "tf_crop_and_resize":
        changed = places
    key = mode, coordinate_transformation_mode, nearest_mode if mode == "nearest" else ""
    spatial = list(range(2, rank))
    if coordinate_transformation_mode == "pytorch_half_pixel" and 1 in size:
        key = mode, "", ""
    if key in OPS and set(changed) <= set(spatial) and rank in (3, 4, 5) and not antialias:
        found = _by_op(b, x, [scale[k] for k in spatial], [size[k] for k in spatial], *OPS[key])
        if found is not None:
            return found
    box = None if roi is None or not len(roi) else np.asarray(roi, float)
    for k in changed:
        if isinstance(x.shape[k], Expr) or isinstance(size[k], Expr):
            raise Untranslatable("a size that is not known is resized in this way")
        ends = (0.0, 1.0)
        if box is not None:
            at = places.index(k)
            ends = float(box[at]), float(box[at + len(places)])
        axis = _Axis(
            x.shape[k], size[k], scale[k], coordinate_transformation_mode, ends, mode, nearest_mode,
            cubic_coeff_a, bool(exclude_outside), bool(antialias), extrapolation_value,
            scales is not None,
        )  # fmt: skip
        x = axis.applied(b, x, k)
    return x


@rule("Resize", since=10, known=[1])
def resize_before(b: Body, x, scales, *, mode="nearest"):
    return upsample(b, x, scales, mode=mode)


def _targets(x: Var, places: list[int], scales: Any, sizes: Any, policy: str) -> tuple:
    """Scales and sizes of all axes."""
    scale: list[Any] = [1.0] * x.type.rank
    size: list[Any] = list(x.shape)
    if sizes is not None and len(listed(sizes)):
        given = listed(sizes)
        if policy != "stretch":
            ratios = [g / size[k] for g, k in zip(given, places, strict=True)]
            chosen = min(ratios) if policy == "not_larger" else max(ratios)
            for k in places:
                scale[k], size[k] = chosen, int(chosen * size[k] + 0.5)
            return scale, size
        for k, wanted in zip(places, given, strict=True):
            size[k] = wanted
            old: Any = x.shape[k]
            is_known = isinstance(wanted, int) and isinstance(old, int)
            scale[k] = wanted / old if is_known else 1.0 if wanted == old else None
        return scale, size
    for k, factor in zip(places, listed(scales), strict=True):
        scale[k] = float(factor)
        if isinstance(size[k], int):
            size[k] = int(np.floor(size[k] * np.float32(factor)))
        elif factor == int(factor):
            size[k] = size[k] * int(factor)
        elif factor:
            inverse = round(1 / factor)
            if abs(inverse * factor - 1) > 1e-6:
                raise Untranslatable("a size that is not known is scaled by a fraction")
            size[k] = size[k] // inverse
    return scale, size


def _by_op(b: Body, x: Var, scale: list, size: list, mode: str, corners: bool) -> Var | None:
    n = len(size)
    whole = [None if s is None else float(s) for s in scale]
    exact = all(
        isinstance(d, int) and isinstance(w, int) and s is not None and d * s == w
        for d, w, s in zip(x.shape[2:], size, whole, strict=True)
    )
    whole_numbers = all(s is not None and s == int(s) for s in whole)
    how: dict[str, Any] = {"scale": whole, "size": None} if whole_numbers else {"size": size}
    if corners and not exact:
        return None
    if not exact and not whole_numbers:
        if any(s is None for s in whole):
            how = {"size": size}
        elif mode == "nearest" or not corners:
            how = {"size": size, "scale": whole}
    if not x.dtype.is_float:
        return None
    mode = LINEAR[n] if mode == "linear" else mode
    return getattr(b, f"upsample{n}d")(x, mode=mode, align_corners=corners, **how)


class _Axis:
    """How one axis is resized: which elements go into each new one, with which weights."""

    def __init__(
        self, size, wanted, scale, transform, ends, mode, nearest, a, exclude, alias, out, by_scale
    ):  # fmt: skip
        self.size, self.wanted, self.mode, self.nearest = size, wanted, mode, nearest
        self.scale, self.transform, self.ends, self.by_scale = scale, transform, ends, by_scale
        self.a, self.exclude, self.alias, self.outside = a, exclude, alias, out

    def positions(self) -> np.ndarray:
        """Where new elements lie in the old axis."""
        if self.wanted > MOST_PLACES:  # a file of some bytes may say any number
            raise Untranslatable("an axis is resized to so many elements in this way")
        k, size, wanted, scale = np.arange(self.wanted), self.size, self.wanted, self.scale
        start, end = self.ends
        match self.transform:
            case "half_pixel":
                return (k + 0.5) / scale - 0.5
            case "pytorch_half_pixel":
                return (k + 0.5) / scale - 0.5 if wanted > 1 else np.zeros(1) - 0.0
            case "half_pixel_symmetric":
                adjustment = wanted / (scale * size)
                offset = size / 2 * (1 - adjustment)
                return offset + (k + 0.5) / scale - 0.5
            case "align_corners":
                whole = size * scale if self.by_scale else wanted
                return k * (size - 1) / (whole - 1) if wanted > 1 else np.zeros(1)
            case "asymmetric":
                return k / scale
            case "tf_half_pixel_for_nn":
                return (k + 0.5) / scale
            case "tf_crop_and_resize":
                if wanted > 1:
                    return start * (size - 1) + k * (end - start) * (size - 1) / (wanted - 1)
                return np.full(1, 0.5 * (start + end) * (size - 1))
        raise Untranslatable(f"coordinates by {self.transform}")

    def applied(self, b: Body, x: Var, axis: int) -> Var:
        places = self.positions()
        if self.mode == "nearest":
            index = self._nearest(places)
            y = b.gather(x, self._constant(b, known(index, i64)), axis=axis)
        else:
            matrix = self._matrix(places)
            dtype = x.dtype if x.dtype.is_float else f32
            w = self._constant(b, known(matrix.astype(np.float32)))
            last = b.transposed(b.to(x, dtype), _swapped(x.type.rank, axis))
            y = b.linear(last, b.to(w, dtype))
            y = b.to(b.transposed(y, _swapped(x.type.rank, axis)), x.dtype)
        if self.transform == "tf_crop_and_resize":
            beyond = (places < 0) | (places > self.size - 1)
            if beyond.any():
                shape = [1] * x.type.rank
                shape[axis] = self.wanted
                mask = self._constant(b, known(beyond.reshape(shape)))
                y = b.where(mask, self.outside, y)
        return y

    def _constant(self, b: Body, value: Known) -> Var:
        value.name = f"{b.prefix}_resize"
        return b.constant(value)  # pyright: ignore[reportAttributeAccessIssue]

    def _nearest(self, places: np.ndarray) -> np.ndarray:
        rounded = {
            "round_prefer_floor": lambda x: np.ceil(x - 0.5), "floor": np.floor, "ceil": np.ceil,
            "round_prefer_ceil": lambda x: np.floor(x + 0.5),
        }[self.nearest]  # fmt: skip
        return np.clip(rounded(places), 0, self.size - 1).astype(np.int64)

    def _matrix(self, places: np.ndarray) -> np.ndarray:
        """Weights of the old elements for each new one."""
        if self.wanted * self.size > MOST:
            raise Untranslatable("an axis of so many elements is resized in this way")
        found = np.zeros((self.wanted, self.size))
        spread = min(self.scale, 1.0) if self.alias else 1.0
        reach = (1 if self.mode == "linear" else 2) / spread
        for row, place in enumerate(places):
            first, last = int(np.floor(place - reach)) + 1, int(np.ceil(place + reach))
            if not self.alias:
                begin = int(np.floor(place))
                width = 1 if self.mode == "linear" else 2
                first, last = begin - width + 1, begin + width + 1
            taps = np.arange(first, last)
            weights = self._weight(np.abs(taps - place) * spread)
            inside = (taps >= 0) & (taps < self.size)
            if self.exclude:
                weights = weights * inside
            if self.exclude or self.alias:
                weights = weights / weights.sum()
            np.add.at(found[row], np.clip(taps, 0, self.size - 1), weights)
        return found

    def _weight(self, distance: np.ndarray) -> np.ndarray:
        if self.mode == "linear":
            return np.maximum(1 - distance, 0)
        if self.mode != "cubic":
            raise Untranslatable(f"resizing by {self.mode}")
        a, d = self.a, distance
        near = ((a + 2) * d - (a + 3)) * d * d + 1
        far = ((d - 5) * d + 8) * d * a - 4 * a
        return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


def _swapped(rank: int, axis: int) -> list[int]:
    perm = list(range(rank))
    perm[axis], perm[-1] = perm[-1], perm[axis]
    return perm
