"""The place of an op in a trace, by a name that people give it."""

from __future__ import annotations

import json
import re
from typing import NamedTuple

from opstep.runtime.ir.diagnostics import did_you_mean
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.wording import Argument, Wording
from opstep.trace.describe import Member, members_of
from opstep.trace.viewer.engine import Engine, argument, quoted

_WARM_UP = 3  # steps in which kernels are compiled, memory is touched first, graphs are captured
_AROUND = 8  # the view is so many times as long as the slice, at each side


class SlicePosition(NamedTuple):
    """A slice: when, for how long, and what the UI shows around it; ns of the trace's clock."""

    ts: int
    dur: int
    view: tuple[int, int]
    name: str
    where: str  # file:line
    run: str
    step: int
    count: int  # of the slices that were meant

    def description(self) -> str:
        """``p = max_pool2d (lenet.opg:12), run 1f2e3d4c, step 3: one of 20``"""
        text = f"at {self.name}{f' ({self.where})' if self.where else ''}, run {self.run}"
        more = f": one of {self.count:,}" if self.count > 1 else ""
        return f"{text}, step {self.step}{more}"


class _Op(NamedTuple):
    """An op of the trace's runs, however often it ran."""

    name: str  # of its slices: c = conv2d
    kind: str
    site: str
    file: str
    line: int
    attrs: str
    count: int

    @property
    def members(self) -> list[Member]:
        return members_of(json.loads(self.attrs)) if self.attrs else []

    @property
    def names(self) -> set[str]:
        """Its names; of a fused step also those of its ops."""
        found = {self.kind, self.name, *(m.op for m in self.members)}
        for site in (self.site, *(m.site for m in self.members)):
            found |= {site, site.rsplit("/", 1)[-1]}
        for file, line in self.places:
            found |= {str(line), f"{file}:{line}", f"{file.rsplit('/', 1)[-1]}:{line}"}
        return found

    @property
    def places(self) -> set[tuple[str, int]]:
        """Files and lines."""
        own = {(self.file, self.line)} if self.line else set()
        inside = (m.place.rpartition(":") for m in self.members if m.place)
        return own | {(file, int(line)) for file, _, line in inside}

    @property
    def calls(self) -> set[str]:
        """Names of the calls that it stands in: ``block:y``, ``y``."""
        parts = self.site.split("/")[1:-1]
        return {*parts, *(part.rsplit(":", 1)[-1] for part in parts)}


def find(engine: Engine, at: str) -> SlicePosition:
    """A slice of an op, the first after the steps that warm up where there are more: by the name
    of its value (``c``), its site (``main/block:y/c``), its kind (``conv2d``) or its line (``12``,
    ``unet.opg:12``); else a slice in a call with that result.

    Raises `InputError` where there is none.
    """
    ops = _ops(engine)
    target = re.sub(r"^(line |:)\s*(?=\d+$)", "", at.strip())
    found = [op for op in ops if target in op.names] or [op for op in ops if target in op.calls]
    if not found:
        raise _absent(engine, at, ops)
    (row,) = engine.query(
        f"select ts, dur, name, {argument('file')}, {argument('line')}, {argument('run')},"
        f" {argument('step')}, (select start_ts from trace_bounds),"
        f" (select end_ts from trace_bounds)"
        f" from slice where category in ('op', 'control') and {_one_of(found)}"
        f" order by coalesce({argument('step')}, 0) < {_WARM_UP}, ts limit 1"
    ).rows
    ts, dur, name, file, line, run, step, begin, end = row
    around = _AROUND * max(dur, 1000)
    where = f"{file.rsplit('/', 1)[-1]}:{line}" if file and line else ""
    view = max(begin, ts - around), min(end, ts + dur + around)
    return SlicePosition(
        ts, dur, view, name, where, run or "", step or 0, sum(op.count for op in found)
    )


def _ops(engine: Engine) -> list[_Op]:
    rows = engine.query(
        f"select name, {argument('name')}, {argument('site')}, {argument('file')},"
        f" {argument('line')}, {argument('attrs')}, count(*) from slice"
        " where category in ('op', 'control') group by 1, 2, 3, 4, 5, 6"
    ).rows
    return [
        _Op(a or "", b or "", c or "", d or "", e or 0, f or "", n) for a, b, c, d, e, f, n in rows
    ]


def _one_of(ops: list[_Op]) -> str:
    """A condition for SQL."""
    sites = ", ".join(sorted({quoted(op.site) for op in ops}))
    lines = ", ".join(sorted({str(op.line) for op in ops}))
    attrs = ", ".join(sorted({quoted(op.attrs) for op in ops}))
    return (
        f"{argument('site')} in ({sites}) and coalesce({argument('line')}, 0) in ({lines})"
        f" and coalesce({argument('attrs')}, '') in ({attrs})"
    )


def _absent(engine: Engine, at: str, ops: list[_Op]) -> InputError:
    if not ops:
        return InputError(
            f"{engine.path} has no ops of opstep", hint=Wording("open it without ", Argument("at"))
        )
    names = {n for op in ops for n in op.names | op.calls if not n.isdigit()}
    hint = did_you_mean(at, names)
    if not hint:
        lines = sorted({line for op in ops for _, line in op.places})
        range_text = f", or a line from {lines[0]} to {lines[-1]}" if lines else ""
        example = min(sorted(names), key=len)
        hint = f"give the name of a value, such as {example}, of an op{range_text}"
    return InputError(f"no op {at} in {engine.path}", hint=hint)
