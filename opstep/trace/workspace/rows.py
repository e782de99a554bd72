"""From records and plans to rows, as the tables of a workspace hold them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from opstep.runtime.ir.types import i64
from opstep.runtime.plan.plan import Alloc, Call, Free, Plan, Run
from opstep.runtime.recording import Layout, live_bytes
from opstep.runtime.statistics import (
    BINS,
    COUNT,
    EXPONENT,
    FIRST_BIN,
    LOWEST,
    M2,
    MAX,
    MEAN,
    MIN,
    NAN,
    NEGINF,
    POSINF,
    SUBNORMAL,
    SUMSQ,
    UNWRITTEN,
    WORDS,
    Statistics,
)
from opstep.trace.describe import OpInfo, describe, frame_path
from opstep.trace.sink import Initial, Numbering

_UNUSUAL = [NAN, POSINF, NEGINF, SUBNORMAL]
HOST = -1  # stream of what the host runs: control flow

# --- statistics -----------------------------------------------------------------------------------


def stats_columns(words: np.ndarray, is_float: np.ndarray) -> list[Sequence[Any]]:
    """Figures by column, ``count`` to ``histogram`` as the table has them.

    `words`: i64[n, WORDS]; `is_float`: bool[n], whether the tensor's dtype is one of floats.
    """
    real = words.view(np.float64)
    finite = words[:, COUNT] - words[:, NAN : NEGINF + 1].sum(axis=1)
    some = finite > 0
    with np.errstate(all="ignore"):
        std = np.ldexp(np.sqrt(real[:, M2] / finite), words[:, EXPONENT])
        l2 = np.ldexp(np.sqrt(real[:, SUMSQ]), words[:, EXPONENT])
    ends = [real[:, MIN], real[:, MAX], np.maximum(np.abs(real[:, MIN]), np.abs(real[:, MAX]))]
    figures = [_or_none(column, some) for column in (*ends, real[:, MEAN], std, l2)]
    for k in np.flatnonzero(some & ~is_float).tolist():  # integers, exact ones
        low, high = words[k, MIN : MAX + 1].tolist()
        figures[0][k], figures[1][k], figures[2][k] = low, high, storable(max(abs(low), abs(high)))
    low, high, absmax, mean, std, l2 = figures
    counts = words[:, : UNWRITTEN + 1].T.tolist()
    if min(counts[UNWRITTEN], default=0) < 0:
        counts[UNWRITTEN] = [None if n < 0 else n for n in counts[UNWRITTEN]]
    found = histograms(words[:, FIRST_BIN : FIRST_BIN + BINS])
    return [counts[COUNT], low, high, mean, std, l2, absmax, *counts[NAN:], *found]


def is_usual(words: np.ndarray) -> bool:
    """Whether no row has NaNs, infinities, subnormals, nor a count of what was not written."""
    return not words[:, _UNUSUAL].any() and bool((words[:, UNWRITTEN] < 0).all())


def storable(number: float | int | None) -> float | int | None:
    """As SQLite can hold it: the magnitude of the least i64 is not an i64."""
    return float(number) if isinstance(number, int) and number >> 63 else number


def _or_none(column: np.ndarray, present: np.ndarray) -> list[Any]:
    values = column.tolist()
    return (
        values
        if present.all()
        else [v if t else None for v, t in zip(values, present, strict=True)]
    )


def figures_row(s: Statistics) -> tuple:
    """The same row for statistics that are decoded already."""
    filled = [k for k, n in enumerate(s.histogram) if n]
    lowest = histogram = None
    if filled:
        lowest = LOWEST + filled[0]
        histogram = str(list(s.histogram[filled[0] : filled[-1] + 1]))
    return (
        s.count, s.min, s.max, s.mean, s.std, s.l2, storable(s.absmax), s.nan, s.posinf, s.neginf,
        s.zero, s.subnormal, s.unwritten, lowest, histogram,
    )  # fmt: skip


# One odd factor a word; never to be changed, or digests of old runs would differ. Whether
# `unwritten` was counted depends on the run's mode, not on the tensor.
_MIX = np.random.Generator(np.random.PCG64(20190505)).integers(
    1, 1 << 63, WORDS + 3, dtype=np.uint64
) | np.uint64(1)

_MIX[UNWRITTEN] = 0


def hashes(
    words: np.ndarray, steps: np.ndarray, turns: np.ndarray, results: np.ndarray
) -> np.ndarray:
    """u64[n]: a hash of each row of statistics with its place. Their sum is an op's digest."""
    with np.errstate(over="ignore"):
        h = (words.view(np.uint64) * _MIX[:WORDS]).sum(axis=1, dtype=np.uint64)
        h += (steps + 1).astype(np.uint64) * _MIX[WORDS]
        h += turns.astype(np.uint64) * _MIX[WORDS + 1]
        h += results.astype(np.uint64) * _MIX[WORDS + 2]
        h = (h ^ (h >> np.uint64(32))) * _MIX[0]
        return h ^ (h >> np.uint64(29))


# --- ops ------------------------------------------------------------------------------------------


def op_rows(
    run: int, first: int, layout: Layout, numbering: Numbering, before: Mapping[int, int], held: int
) -> tuple[list[tuple], list[tuple]]:  # fmt: skip
    """Rows of `ops` (without its sums) and of `results` for the ops of a plan, while which run its
    callers hold so many bytes. `before`: see `Run.numbers_before`.
    """
    plan = layout.plan
    streams = {step: k for k, rows in enumerate(layout.rows) for step in rows}
    live = {step: nbytes + held for step, nbytes in live_bytes(plan).items()}
    sources = _sources(plan, first, numbering, before)
    ops, results = [], []
    for number, op in enumerate(numbering.ops):
        info, step = describe(plan, op), numbering.step_of[number]
        last = numbering.stands_for(number)
        is_last = number == last
        whole = describe(plan, plan.steps[step]) if is_last and plan.steps[step].members else info
        done = (whole.nbytes, whole.flops) if is_last else (0, 0)
        ops.append(
            (
                run, first + number, info.name, info.site, plan.graph, info.graph, info.frame,
                plain(info.file) or None, info.line or None, plain(info.statement),
                to_json(info.operands), to_json(sources[number]), to_json(info.attrs),
                streams.get(step, HOST), *done, live.get(step), None if is_last else first + last,
            )
        )  # fmt: skip
        results += _result_rows(run, first + number, info)
    return ops, results


def _result_rows(run: int, op: int, info: OpInfo) -> list[tuple]:
    return [
        (run, op, k, name, t.dtype.name, to_json(t.shape), t.nbytes)
        for k, (name, t) in enumerate(info.results)
    ]


def initial_rows(run: int, graph: str, initial: Sequence[Initial]) -> tuple[list, list, list, list]:
    """Rows of `ops`, `results`, `executions` and `stats` for inputs and named tensors: op -1 is the
    first of them, -2 the second, and so on; step -1, before any other.
    """
    ops, results, executions, stats = [], [], [], []
    for k, tensor in enumerate(initial):
        op = -1 - k
        head = (run, op, tensor.kind, f"{tensor.kind}/{tensor.name}", graph, graph, graph)
        ops.append(
            (*head, None, None, None, "[]", "[]", "{}", HOST, tensor.type.nbytes, 0, None, None)
        )
        shape = to_json(tensor.type.shape)
        results.append((run, op, 0, tensor.name, tensor.type.dtype.name, shape, tensor.type.nbytes))
        if tensor.statistics is not None:
            executions.append((run, op, -1, op, HOST, -1, 0, None, None))
            stats.append((run, -1, op, op, 0, *figures_row(tensor.statistics)))
    return ops, results, executions, stats


def _sources(
    plan: Plan, first: int, numbering: Numbering, before: Mapping[int, int]
) -> list[list[Any]]:
    """For each op, who gave its operands: see the column."""
    gave: dict[int, Any] = {value: [number, 0] for value, number in before.items()}
    for value, v in enumerate(plan.values):
        if v.buffer >= 0 and plan.buffers[v.buffer].kind == "const":
            gave[value] = 0
    found = []
    for number, step in enumerate(numbering.ops):
        found.append([gave.get(v) for v in step.operands if v is not None])
        for k, value in enumerate(step.results):
            if step.op.traits.reinterprets and step.operands[0] is not None:
                gave[value] = gave.get(step.operands[0])
            else:
                gave[value] = [first + number, k]
    return found


def plain(text: str) -> str:
    """As SQLite can hold it: a path whose bytes are not UTF-8 has surrogates."""
    return text.encode("utf-8", "replace").decode()


def to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


# --- histograms -----------------------------------------------------------------------------------


_COMMA, _SPACE, _OPEN, _CLOSE, _ZERO = 44, 32, 91, 93, 48


def write_histograms(bins, stride, out, ends, lowest, lo, hi):
    """Rows lo..hi, one after the other: the texts, where each ends, and its first bin or -1."""
    at = 0
    for row in range(lo, hi):
        first, last = -1, -1
        for k in range(BINS):
            if bins[row * stride + k] != 0:
                last = k
                first = k if first < 0 else first
        lowest[row] = first
        if first >= 0:
            out[at] = np.uint8(_OPEN)
            at += 1
            for k in range(first, last + 1):
                if k > first:
                    out[at] = np.uint8(_COMMA)
                    out[at + 1] = np.uint8(_SPACE)
                    at += 2
                number = bins[row * stride + k]
                size, power = 1, 10
                while size < 19 and number >= power:
                    size += 1
                    power *= 10
                for i in range(size):
                    out[at + size - 1 - i] = np.uint8(_ZERO + number % 10)
                    number = number // 10
                at += size
            out[at] = np.uint8(_CLOSE)
            at += 1
        ends[row] = at


def histograms(bins: np.ndarray) -> tuple[list[int | None], list[str | None]]:
    """Of i64[n, BINS], whose rows may stand apart: exponents of the first bins that are not empty,
    and the bins from there to the last, as JSON; None where all are.
    """
    from opstep.runtime.device.cpu import jit, native

    count = len(bins)
    if not count:
        return [], []
    longest = len(str(bins.max())) + 2
    out = np.empty(count * (BINS * longest + 2), np.uint8)
    ends, lowest = np.empty(count, np.int64), np.empty(count, np.int64)
    words = [bins.ctypes.data, bins.strides[0] // 8, out.ctypes.data, ends.ctypes.data]
    arguments = np.array([*words, lowest.ctypes.data], np.int64)
    entry = jit.address(write_histograms, ("*i64", "i", "*u8", "*i64", "*i64"), i64, True)
    native.call(entry, arguments.ctypes.data, 0, count)
    text = out[: ends[-1]].tobytes().decode()
    stops = ends.tolist()
    texts = [text[a:b] or None for a, b in zip([0, *stops], stops, strict=False)]
    return [None if k < 0 else k + LOWEST for k in lowest.tolist()], texts


# --- what a plan holds in memory ------------------------------------------------------------------


NAMED = ("param", "state")


def buffer_rows(
    run: int, first: int, plan: Plan, numbering: Numbering, kinds: dict[str, str],
    caller: int | None,
) -> list[tuple]:  # fmt: skip
    """Of a plan whose ops are numbered from `first`. `kinds`: of named tensors; `caller`: the op
    that runs the plan, whose operands its inputs are; None for the run's own.
    """
    from_op, until = _lifetimes(plan)
    names, types = _names(plan)
    last = first + max(len(numbering) - 1, 0)
    rows = []
    for number, buffer in enumerate(plan.buffers):
        kind = kinds.get(buffer.name, "param") if buffer.kind == "param" else buffer.kind
        if kind == "status" or (kind == "input" and caller is not None) or not buffer.nbytes:
            continue
        begin, end = first, last
        if kind == "temp":
            if number not in from_op:
                continue
            begin = first + numbering.first[from_op[number]]
            end = first + numbering.last[until[number]]
            kind = "temporary" if number in names else "workspace"
        name = buffer.name if kind in NAMED else names.get(number)
        row = (run, first, number, caller, kind, plain(name) if name else None)
        rows.append((*row, types.get(number), buffer.nbytes, begin, end))
    return rows


def _lifetimes(plan: Plan) -> tuple[dict[int, int], dict[int, int]]:
    """For each temporary buffer the first and the last step that runs while it is allocated."""
    from_op: dict[int, int] = {}
    until: dict[int, int] = {}
    live: set[int] = set()
    fresh: set[int] = set()
    latest = 0
    for instruction in plan.instructions:
        match instruction:
            case Alloc(buffer):
                fresh.add(buffer)
            case Free(buffer):
                live.discard(buffer)
                fresh.discard(buffer)
                until[buffer] = latest
            case Run(step) | Call(step):
                latest = step
                from_op |= dict.fromkeys(fresh - live, step)
                live |= fresh
                fresh = set()
    return from_op, {buffer: until.get(buffer, latest) for buffer in from_op}


def _names(plan: Plan) -> tuple[dict[int, str], dict[int, str]]:
    """Of each buffer the first tensor that lives in it: its path and its type."""
    frames = {v: step.frame for step in plan.steps for v in step.results}
    names: dict[int, str] = {}
    types: dict[int, str] = {}
    for number, value in enumerate(plan.values):
        path = f"{frame_path(plan, frames[number])}/" if number in frames else ""
        names.setdefault(value.buffer, f"{path}{value.name}")
        types.setdefault(value.buffer, str(value.type))
    return names, types
