"""Where in a timeline something ran, by the name that a person gives it."""

from __future__ import annotations

import re
from typing import NamedTuple

from opstep.runtime.ir.diagnostics import did_you_mean
from opstep.runtime.ir.errors import InputError
from opstep.trace.viewer.engine import Engine


class Place(NamedTuple):
    """A slice: `ts` and `dur` in ns of the trace's clock. `count`: slices that were meant, this
    one being the first of them.
    """

    ts: int
    dur: int
    name: str
    step: int
    count: int


# What an op, or control flow on the host, is called; `results` begins with "c: f32[8]".
_OPS = """
select ts, dur, slice.name,
  extract_arg(arg_set_id, 'debug.step') as step, extract_arg(arg_set_id, 'debug.name') as op,
  extract_arg(arg_set_id, 'debug.site') as site, extract_arg(arg_set_id, 'debug.line') as line,
  extract_arg(arg_set_id, 'debug.results') as results
from slice where category in ('op', 'control')
"""
_RESULT = re.compile(r"(?:^|, )([^\s:,\[\]]+): ")


def find(engine: Engine, text: str, step: int | None = None) -> Place:
    """The first slice of an op: by site (``main/encode:l/h``), by a value that it gives, by its
    name, by its line, in this order. `step`: of this step only.

    Raises `InputError` where there is none.
    """
    where = "" if step is None else f" and extract_arg(arg_set_id, 'debug.step') = {step:d}"
    ops = engine.query(f"{_OPS}{where} order by ts").rows
    if not ops:
        steps = "" if step is None else f" of step {step}"
        raise InputError(f"{engine.path} has no ops{steps}", hint=_hint_for_steps(engine, step))
    called = [  # of each op: (site, values, name, line)
        ([site], _RESULT.findall(results or ""), [op], [str(line)])
        for *_, op, site, line, results in ops
    ]
    for kind in range(4):
        found = [k for k, names in enumerate(called) if text in names[kind]]
        if found:
            ts, dur, name, at, *_ = ops[found[0]]
            return Place(ts, dur, name, at, len(found))
    known = {name for names in called for kind in names[:3] for name in kind}
    hint = did_you_mean(text, known) or "the name of an op or a value, a site, or a line"
    raise InputError(f"no op of {engine.path} is called {text}", hint=hint)


def _hint_for_steps(engine: Engine, step: int | None) -> str:
    if step is None:
        return "opstep run … --trace FILE.pftrace writes a timeline of ops"
    sql = "select max(extract_arg(arg_set_id, 'debug.step')) from slice where category = 'op'"
    last = engine.query(sql).rows[0][0]
    return "it has no ops at all" if last is None else f"the last step is {last}"
