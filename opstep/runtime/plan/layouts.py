"""Images with channels last between convolutions, where nobody looks at single ops.

Convolution kernels that sum over channels need them as neighbours in memory, and transpose images
for that. Where one convolution reads the result of another, directly or by way of elementwise ops,
that is stored with channels last instead, and so are the other operands of those ops: nothing is
transposed between them. A transpose to this order that the program has, as ConvNeXt's, copies
nothing then. Other readers of such a value get a copy; where these copies take more than is saved,
nothing changes. The device says which convolutions have such kernels: on a GPU of sm_90 those of
f16 and bf16, where ResNet-50 takes 1.08 times PyTorch's time instead of 1.17, and ConvNeXt-T 0.83
instead of 1.21 (an H200, batch 32, `--kernels auto`). The CPU has none.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

from opstep.runtime.ir.interfaces import lays_out_of
from opstep.runtime.ir.op import Op, Traits
from opstep.runtime.ir.strided import Strided
from opstep.runtime.ir.types import TensorType
from opstep.runtime.plan.cost import BYTES_PER_NS, LAUNCH_NS
from opstep.runtime.plan.flat import Flat
from opstep.runtime.plan.fusing import Body, Grouping, fused, is_elementwise
from opstep.runtime.plan.internal import Described, PlanOp
from opstep.runtime.plan.plan import Step, Takes
from opstep.runtime.plan.viewing import (
    is_idle,
    may_be_shown,
    moved,
    moves,
    moving,
    shown,
    without_idle_moves,
)

_LAST = (0, 2, 3, 1)  # axes of an image, as they lie in memory with channels last
LAUNCH = 4 << 20  # bytes that a GPU copies in the time of a launch


class channels_last(PlanOp):
    """A convolution on images with channels last (kernels in `kernels.conv.layouts`)."""

    name = "channels_last"
    traits = Traits(epilogues=True)

    def flops(*types, layout):
        x, *others = types
        x = with_channels_first(x) if layout.x_last else x
        return layout.op.flops(x, *others, **dict(layout.attrs))


@dataclass(frozen=True, repr=False)
class Layout(Described):
    """The computation of a `channels_last` op: `op`, and whether x and y have channels last."""

    op: type[Op]
    attrs: tuple[tuple[str, Any], ...]
    x_last: bool
    y_last: bool

    def types_alone(self, types) -> tuple[TensorType | None, ...]:
        """Of the op by itself, where `types` are those of operands and the result as stored."""
        x, *others, y = types
        x = with_channels_first(x) if self.x_last else x
        return (x, *others, with_channels_first(y) if self.y_last else y)


def with_channels_last(t: Any) -> Any:
    """The type [N, C, H, W] as [N, H, W, C]."""
    n, c, *size = t.shape
    return t.with_shape((n, *size, c))


def with_channels_first(t: Any) -> Any:
    """The type [N, H, W, C] as [N, C, H, W]."""
    return t.with_shape(channels_first(t.shape))


def channels_first(shape: tuple[Any, ...]) -> tuple[Any, ...]:
    """(N, H, W, C) as (N, C, H, W)."""
    n, *size, c = shape
    return (n, c, *size)


def convolving(step: Step, operands, types, x_last: bool, y_last: bool) -> Step:
    """A convolution's step that reads operands of such types, as they are stored."""
    layout = Layout(step.op, tuple(step.attrs.items()), x_last, y_last)
    return Step(
        channels_last, tuple(operands), step.results, tuple(types), {"layout": layout},
        step.frame, step.statement, members=(step,),
    )  # fmt: skip


def with_layouts(flat: Flat, takes: Takes) -> Flat:
    """The same with such steps where the device takes them."""
    layouts = _Layouts(flat, takes)
    if not layouts.last:
        return flat
    made = layouts.flat_with_them()
    return without_idle_moves(made) if layouts.spared > 0 else flat


class _Layouts:
    """`last`: values that are stored with channels last. `convs`: places of convolutions;
    `pointwise`: elementwise steps on such values, by place. `spared`: bytes that are not copied.
    """

    def __init__(self, flat: Flat, takes: Takes):
        self.flat = flat
        self.takes = takes
        self.last: set[int] = set()
        self.spared = 0
        self.pointwise: dict[int, Step] = {}
        steps = flat.steps[: len(flat.steps) - flat.commits]
        self.convs = {
            k
            for k, s in enumerate(steps)
            if lays_out_of(s.op) is not None and len(s.results) == 1 and not flat.converts(s)
        }
        if not self.convs:
            return
        self._grouping = Grouping(flat)
        self._able: dict[tuple[int, bool, bool], bool] = {}
        self._fixed = set(flat.outputs)
        self._shared = {home for home, count in Counter(flat.homes).items() if count > 1}
        for k, step in enumerate(flat.steps):
            self._fixed.update(step.touched)
            if k >= len(steps):
                self._fixed.update(v for v in step.operands if v is not None)
        for k in reversed(range(len(steps))):
            self._decide(k, steps[k])

    def _decide(self, k: int, step: Step) -> None:
        """Whether a step's results have channels last; all who read them are decided."""
        if not all(map(self._is_free, step.results)) or not any(map(self._is_wanted, step.results)):
            return
        if k in self.convs:
            if self._can(k, False, True) or self._can(k, True, True):
                self.last.update(step.results)
            return
        if self._moves_nothing(step, False, True):
            self.last.update(step.results)
            return
        found = self._on_images(k, step)
        if found is not None:
            self.pointwise[k] = found
            self.last.update(step.results)

    def _is_free(self, v: int) -> bool:
        """Whether a value may be stored in another way: only steps read it, as itself."""
        flat, home = self.flat, self.flat.homes[v]
        own = flat.kinds[home] == "temp" and home not in self._shared and v not in self._fixed
        return own and flat.types[v].rank == 4

    def _is_wanted(self, v: int) -> bool:
        """Whether a step that reads a value has channels last itself, or would move it there."""
        return any(
            k in self.pointwise or self._takes_in(k, v) or self._shows_last(k)
            for k in self._grouping.readers.get(self.flat.homes[v], ())
        )

    def _takes_in(self, k: int, v: int) -> bool:
        """Whether a step is a convolution that can read a value so."""
        if k not in self.convs:
            return False
        step = self.flat.steps[k]
        return step.operands[0] == v and self._can(k, True, step.results[0] in self.last)

    def _shows_last(self, k: int) -> bool:
        """Whether a step is a copy that moves nothing of an operand with channels last."""
        step = self.flat.steps[k]
        return self._moves_nothing(step, True, any(v in self.last for v in step.results))

    def _moves_nothing(self, step: Step, x_last: bool, y_last: bool) -> bool:
        """Whether a copy, which a step may be, moves nothing where operand and result are so."""
        copies = (step.op is moved and not x_last) or (
            moves(step) and not step.op.traits.reinterprets
        )
        x: Any = self.flat.types[step.operands[0] or 0] if copies else None  # concrete
        if not copies or not (x_last or y_last) or (x_last and x.rank != 4):
            return False
        source = _as_stored(x.shape) if x_last else None
        return is_idle(self.flat, step, source, _LAST if y_last else None)

    def _can(self, k: int, x_last: bool, y_last: bool) -> bool:
        key = (k, x_last, y_last)
        if key not in self._able:
            step = self.flat.steps[k]
            x, y = (self.flat.types[v] for v in (step.operands[0] or 0, *step.results))
            types = [None if v is None else self.flat.types[v] for v in step.operands]
            types[0] = with_channels_last(x) if x_last else x
            made = convolving(step, step.operands, types, x_last, y_last)
            stored = (*types, with_channels_last(y) if y_last else y)
            self._able[key] = self.takes(made, stored)
        return self._able[key]

    def _on_images(self, k: int, step: Step) -> Step | None:
        """An elementwise step whose operands are images of one shape, single numbers, or have one
        for each channel, of all images or of each; None where it is none.
        """
        if step.op is not fused and not is_elementwise(step):
            return None
        found = step if step.op is fused else self._grouping.step([k])[0]
        body: Body = found.attrs["body"]
        types = self.flat.types
        shape = types[step.results[0]].shape
        fits = all(
            t.shape == (shape[1:2] if j in body.per_channel else shape) or t.size == 1
            or _is_of_channels(t.shape, shape)
            for j, t in enumerate(types[v] for v in found.operands if v is not None)
        )  # fmt: skip
        alike = {types[v].shape for v in step.results} == {shape}
        if not fits or not alike or body.status >= 0 or found.results != step.results:
            return None
        return found if step.op is fused or body.per_channel else step

    # --- the graph with them ---

    def flat_with_them(self) -> Flat:
        flat = self.flat
        columns = {
            name: getattr(flat, name).copy()
            for name in ("names", "types", "homes", "frame_of", "kinds", "sizes")
        }
        made = replace(flat, steps=[], costs=[], **columns)
        for v in self.last:
            made.types[v] = with_channels_last(flat.types[v])
        twins: dict[int, int] = {}
        fixed = {flat.homes[v] for v in flat.outputs}
        several = self._read_by_several()
        for k, (step, cost) in enumerate(zip(flat.steps, flat.costs, strict=True)):
            source = step.operands[0] if k in self.convs else None
            y_last = k in self.convs and step.results[0] in self.last
            x_last = source is not None and (source in self.last or source in several)
            x_last = x_last or (y_last and not self._can(k, False, True))
            x_last = x_last and self._can(k, True, y_last)
            shown_last = any(v in self.last for v in step.results)
            read_last = any(v in self.last for v in step.operands)
            as_it_is = self._moves_nothing(step, read_last, shown_last)
            idle = as_it_is or self._moves_nothing(step, False, shown_last)
            of = self.pointwise.get(k, step)
            last = [k in self.pointwise or (x_last and not j) for j in range(len(of.operands))]
            operands = tuple(
                v if v is None or as_it_is else self._as(made, twins, v, wanted, step)
                for v, wanted in zip(of.operands, last, strict=True)
            )
            if x_last or y_last:
                turned = lays_out_of(step.op)(*step.operand_types, **step.attrs)
                self._spare(source, turned if x_last else turned - 1)
                types = [None if v is None else made.types[v] for v in operands]
                made.steps.append(convolving(step, operands, types, x_last, y_last))
            elif k in self.pointwise:
                made.steps.append(_permuted(made, of, operands))
            elif idle:
                if may_be_shown(flat, step, fixed):
                    self._spare(step.results[0], 1)
                (v,), (result,) = operands, step.results
                shape: Any = made.types[result].shape  # concrete
                whole = Strided.whole(shape)
                made.steps.append(moving(made, v or 0, result, whole, step, (step,)))
            else:
                made.steps.append(replace(step, operands=operands))
            made.costs.append(cost)
        return made

    def _read_by_several(self) -> set[int]:
        """Values with channels first that several steps want last: they share a copy."""
        counts: Counter[int] = Counter()
        for k in self.convs:
            step = self.flat.steps[k]
            v = step.operands[0]
            if v is not None and v not in self.last and self._takes_in(k, v):
                counts[v] += 1
        for step in self.pointwise.values():
            for v in {v for v in step.operands if v is not None and v not in self.last}:
                if self.flat.types[v].shape == self.flat.types[step.results[0]].shape:
                    counts[v] += 1
        return {v for v, count in counts.items() if count > 1}

    def _spare(self, v: int | None, copies: int) -> None:
        nbytes: Any = self.flat.types[v or 0].nbytes
        self.spared += copies * (nbytes + LAUNCH)

    def _as(self, made: Flat, twins: dict[int, int], v: int, last: bool, reader: Step) -> int:
        """The value with channels last or first, whichever is meant; a copy, if it has to be."""
        t: Any = self.flat.types[v]  # concrete
        if last and t.shape[-2:] == (1, 1) and v not in self.last and t.size > 1:
            return self._of_channels(made, twins, v, reader)
        if last is (v in self.last) or t.rank != 4 or t.size == 1:
            return v
        if v not in twins:
            self._spare(v, -1)
            wanted = with_channels_last(t) if last else t
            nbytes: Any = t.nbytes
            name = f"{made.names[v]}_{'last' if last else 'first'}"
            home = made.add_buffer("temp", nbytes)
            twins[v] = made.add_value(name, wanted, home, made.frame_of[v])
            _, c, h, w = t.shape
            strides = (c * h * w, w, 1, h * w) if last else (c * h * w, 1, w * c, c)
            view = Strided(0, wanted.shape, strides)
            made.steps.append(moving(made, v, twins[v], view, reader))
            made.costs.append(LAUNCH_NS + 2 * nbytes // BYTES_PER_NS)
        return twins[v]

    def _of_channels(self, made: Flat, twins: dict[int, int], v: int, reader: Step) -> int:
        """A tensor with one number for each channel, under a shape with channels last: no copy."""
        if v not in twins:
            t = self.flat.types[v]
            wanted = t.with_shape((*t.shape[:-3], 1, 1, t.shape[-3]))
            twins[v] = made.add_value(made.names[v], wanted, made.homes[v], made.frame_of[v])
            made.steps.append(
                Step(shown, (v,), (twins[v],), (t,), {}, reader.frame, reader.statement)
            )
            made.costs.append(1)
        return twins[v]


def _as_stored(shape: tuple[int, ...]) -> Strided:
    """The places of images [N, C, H, W] that are stored with channels last."""
    _, c, h, w = shape
    return Strided(0, shape, (c * h * w, 1, w * c, c))


def _is_of_channels(shape: tuple[Any, ...], images: tuple[Any, ...]) -> bool:
    """Whether a tensor has one number for each channel of images: [C, 1, 1], [1 or N, C, 1, 1]."""
    own = (1,) * (4 - len(shape)) + tuple(shape)
    return len(own) == 4 and own[1:] == (images[1], 1, 1) and own[0] in (1, images[0])


def _permuted(made: Flat, of: Step, operands: tuple[int | None, ...]) -> Step:
    """An elementwise step on images with channels last: what there is one of for each channel lies
    along the last axis.
    """
    types = tuple(
        t if t is None or v is None else t.with_shape(made.types[v].shape)
        for t, v in zip(of.operand_types, operands, strict=True)
    )
    attrs = of.attrs
    if of.op is fused:
        attrs = {"body": replace(attrs["body"], per_channel=())}
    return replace(of, operands=operands, operand_types=types, attrs=attrs)
