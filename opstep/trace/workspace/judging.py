"""NaNs and infinities of a recording, as a hunt judges them."""

from __future__ import annotations

import json
import math
import re
import sqlite3
from collections.abc import Iterator
from typing import Any, NamedTuple

from opstep.runtime.ir.graph import Return
from opstep.trace.sink import Run
from opstep.trace.workspace.views import BAD, VERDICT

# Of the file: large steps wait in temporary tables of the same names.
_HERE = re.sub(r"\b(from|join) (?=stats|executions)", r"\g<0>main.", VERDICT)
_STEPS = (
    f"select distinct step from main.stats indexed by stats_by_run_step where run = ? and ({BAD})"
)
_FIRST = f"""
select s.step, s.op, s.nan, r.name as value, o.file, o.line, o.name, s.count,
  s.nan + s.posinf + s.neginf as wrong, {_HERE} as verdict
from main.stats as s indexed by stats_by_run_step
cross join main.executions as e on e.run = s.run and e.execution = s.execution
cross join ops as o on o.run = s.run and o.op = s.op
cross join results as r on r.run = s.run and r.op = s.op and r.result = s.result
where s.run = :run and s.step = :step and ({BAD})
  and (s.nan > 0 or s.op not in (select value from json_each(:writing)))
  and (
    s.nan > 0
    or (s.count = 1 and s.op in (select value from json_each(:returning)))
    or (
      (o.name <> 'input' or s.posinf > 0) and o.name <> 'state' and verdict is not 'propagated'
    )
  )
order by coalesce(e.start_ns, 0), s.execution, s.result limit 1
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
    as they should be, and so is what passes them on without a NaN, unless the graph returns it as
    one number, as a loss.
    """
    query: dict[str, Any] = {}
    for (step,) in connection.execute(f"{_STEPS} order by step", (id,)):
        if not query:
            returning, writing = _returning(connection, run, id), _writing(connection, id)
            query = {"run": id, "returning": json.dumps([*returning]),
                     "writing": json.dumps([*writing])}  # fmt: skip
        if row := connection.execute(_FIRST, query | {"step": step}).fetchone():
            return Bad(*row)
    return None


def _returning(connection: sqlite3.Connection, run: Run, id: int) -> Iterator[int]:
    """Ops that compute what the graph returns."""
    graph = run.info.program.module.graphs.get(run.info.graph)  # a script has none
    body = graph.body if graph else ()
    names = {n.text for s in body if isinstance(s, Return) for n in s.values}
    rows = connection.execute(
        "select op, results.name from results join ops using (run, op) "
        "where run = ? and graph = ? and op >= 0",
        (id, run.info.graph),
    )
    return (op for op, name in rows if name in names)


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
