"""What a recording says of NaNs and infinities, as a hunt judges them."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterator
from typing import Any, NamedTuple

from opstep.runtime.ir.graph import Return
from opstep.trace.sink import Run
from opstep.trace.workspace.views import BAD, VERDICT

_FIRST = f"""
select s.step, s.op, s.nan, r.name as value, o.file, o.line, o.name, s.count,
  s.nan + s.posinf + s.neginf as wrong, {VERDICT} as verdict
from stats as s indexed by stats_by_run_step
cross join executions as e on e.run = s.run and e.execution = s.execution
cross join ops as o on o.run = s.run and o.op = s.op
cross join results as r on r.run = s.run and r.op = s.op and r.result = s.result
where s.run = :run and ({BAD})
  and (
    s.nan > 0
    or (o.graph = :graph and r.name in (select value from json_each(:returned)))
    or (
      s.op not in (select value from json_each(:writing))
      and (o.name <> 'input' or s.posinf > 0)
      and o.name <> 'state'
      and verdict is not 'propagated'
    )
  )
order by s.step, coalesce(e.start_ns, 0), s.execution, s.result limit 1
"""


class Bad(NamedTuple):
    """The first NaN or infinity that is not meant to be there; see the view `first_bad`."""

    step: int
    op: int
    nan: int
    value: str
    file: str | None
    line: int | None
    name: str
    count: int
    wrong: int
    verdict: str | None


def first_wrong(connection: sqlite3.Connection, run: Run, id: int) -> Bad | None:
    """The first one of a run. Infinities that the program itself writes, and -inf in an input, are
    as they should be as long as they do not come out, and so is what passes them on without a NaN.
    """
    if connection.execute(f"select 1 from stats where run = ? and ({BAD})", (id,)).fetchone():
        graph = run.info.program.module.graphs[run.info.graph]
        returned = [n.text for s in graph.body if isinstance(s, Return) for n in s.values]
        query = {
            "run": id, "graph": run.info.graph, "returned": json.dumps(returned),
            "writing": json.dumps(list(_writing(connection, id))),
        }  # fmt: skip
        row = connection.execute(_FIRST, query).fetchone()
        return Bad(*row) if row else None
    return None


def _writing(connection: sqlite3.Connection, id: int) -> Iterator[int]:
    """Ops with an infinite literal or attribute: a mask's value, a limit."""
    rows = connection.execute("select op, operands, sources, attrs from ops where run = ?", (id,))
    for op, operands, sources, attrs in rows:
        given = zip(json.loads(operands or "[]"), json.loads(sources or "[]"), strict=False)
        literals = [name for (name, *_), source in given if source == 0]
        if any(map(_is_infinite, [*literals, *json.loads(attrs or "{}").values()])):
            yield op


def _is_infinite(value: Any) -> bool:
    try:
        return math.isinf(float(value))
    except (TypeError, ValueError):
        return False
