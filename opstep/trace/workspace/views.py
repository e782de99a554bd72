"""Views of a workspace: the common queries, each answered for one run by an index."""

from __future__ import annotations

from typing import NamedTuple

from opstep.runtime.plan.fusing import MOST_OPS


class View(NamedTuple):
    name: str
    what: str
    columns: tuple[tuple[str, str], ...]  # name and meaning
    sql: str


# An index over these rows alone finds the first bad one among millions (see the schema).
BAD = "nan > 0 OR posinf > 0 OR neginf > 0"

# Of a row of `stats` (s), with its execution (e) and its op (o). An operand was finite if it was
# looked at in the same activation.
_OPERANDS = """json_each(o.sources) as j
              left join stats as p on p.run = s.run and p.step = s.step
                and p.op = json_extract(j.value, '$[0]')
                and p.result = json_extract(j.value, '$[1]')
                and exists (
                  select 1 from executions as q where q.run = p.run
                    and q.execution = p.execution and q.activation = e.activation
                )"""
VERDICT = f"""case
            when o.name in ('input', 'param', 'state') then 'origin'
            when exists (
              select 1 from {_OPERANDS}
              where j.type = 'array' and (p.nan > 0 or p.posinf > 0 or p.neginf > 0)
            ) then 'propagated'
            when exists (
              select 1 from {_OPERANDS}
              where j.type = 'null' or j.type = 'array' and p.run is null
            ) then null
            else 'origin'
          end"""

_OP = (
    ("name", "name of the op"),
    ("site", "its frame and first result"),
    ("file", "file of its statement"),
    ("line", "line of its statement"),
    ("statement", "text of the statement"),
)

VIEWS = (
    View(
        "first_bad",
        "The origin of the first NaN or infinity of each run: the earliest op of the first step "
        "that has one. `verdict` also needs the statistics of the operands.",
        (
            ("run", "the run"),
            ("step", "step of the run; -1: it was there before the first"),
            ("execution", "the execution that computed it"),
            ("op", "number of the op in its run"),
            *_OP,
            ("value", "name of the tensor"),
            ("count", "number of elements"),
            ("nan", "number of NaNs"),
            ("posinf", "number of +inf"),
            ("neginf", "number of -inf"),
            (
                "verdict",
                "origin: all operands were finite; propagated: one was not; null: an operand has "
                "no recorded statistics",
            ),
        ),
        f"""
        select s.run, s.step, s.execution, s.op, o.name, o.site, o.file, o.line, o.statement,
          r.name as value, s.count, s.nan, s.posinf, s.neginf,
          {VERDICT} as verdict
        from runs
        cross join stats as s on s.run = runs.id and s.step = (
          select f.step from stats as f indexed by stats_by_run_step
          where f.run = runs.id and (f.nan > 0 or f.posinf > 0 or f.neginf > 0)
          order by f.step limit 1
        ) and (s.execution, s.result) = (
          select b.execution, b.result
          from stats as b join executions as w on w.run = b.run and w.execution = b.execution
          where b.run = runs.id and (b.nan > 0 or b.posinf > 0 or b.neginf > 0)
            and b.step = (
              select f.step from stats as f indexed by stats_by_run_step
              where f.run = runs.id and (f.nan > 0 or f.posinf > 0 or f.neginf > 0)
              order by f.step limit 1
            )
          order by coalesce(w.start_ns, 0), b.execution, b.result limit 1
        )
        cross join executions as e on e.run = s.run and e.execution = s.execution
        cross join ops as o on o.run = s.run and o.op = s.op
        cross join results as r on r.run = s.run and r.op = s.op and r.result = s.result
        """,
    ),
    View(
        "slowest_ops",
        "The total time of each op of a run. Order by total_ns.",
        (
            ("run", "the run"),
            ("op", "number of the op in its run"),
            ("name", "name of the op; where several run as one, of all: batch_norm+add+relu"),
            *_OP[1:],
            ("executions", "how often it ran, in recorded steps"),
            ("total_ns", "total time"),
            ("mean_ns", "mean time of an execution"),
            ("least_ns", "time of the fastest execution"),
            ("most_ns", "time of the slowest execution"),
            ("gflops", "floating-point operations per nanosecond"),
            ("gbytes", "bytes read and written per nanosecond"),
        ),
        f"""
        select o.run, o.op,
          coalesce((
            select group_concat(name, '+') || '+' from (
              select m.name from ops as m where m.run = o.run and m.fused_into = o.op
                and m.op between o.op - {MOST_OPS} and o.op order by m.op
            )
          ), '') || o.name as name,
          o.site, o.file, o.line, o.statement, o.executions, o.total_ns,
          o.total_ns / o.executions as mean_ns, o.least_ns, o.most_ns,
          round(1.0 * o.flops * o.executions / max(o.total_ns, 1), 3) as gflops,
          round(1.0 * o.bytes * o.executions / max(o.total_ns, 1), 3) as gbytes
        from ops as o where o.total_ns is not null
        """,
    ),
    View(
        "stat_history",
        "The statistics of each tensor by step, with the names of the tensor and the op. Select by "
        "run and by value, site or op.",
        (
            ("run", "the run"),
            ("step", "step of the run"),
            ("execution", "the execution that computed it"),
            ("op", "number of the op in its run"),
            ("name", "name of the op"),
            ("site", "its frame and first result"),
            ("line", "line of its statement"),
            ("value", "name of the tensor"),
            ("shape", "its dims"),
            ("min … unwritten", "its statistics, see stats"),
        ),
        """
        select s.run, s.step, s.execution, s.op, o.name, o.site, o.line, r.name as value, r.shape,
          s.count, s.min, s.max, s.mean, s.std, s.l2, s.absmax, s.nan, s.posinf, s.neginf, s.zero,
          s.subnormal, s.unwritten
        from results as r
        cross join ops as o on o.run = r.run and o.op = r.op
        cross join steps as t on t.run = r.run
        cross join stats as s on s.run = t.run and s.step = t.step and s.op = r.op
          and s.result = r.result
        """,
    ),
    View(
        "memory_peak",
        "The op of each run during which temporary tensors used the most memory.",
        (
            ("run", "the run"),
            ("op", "number of the op in its run"),
            *_OP,
            (
                "live_bytes",
                "bytes of temporary tensors while it runs, including its callers'",
            ),
            ("arena_bytes", "memory that the plan reserves for temporary tensors"),
            ("param_bytes", "memory for params and states"),
        ),
        """
        select o.run, o.op, o.name, o.site, o.file, o.line, o.statement, o.live_bytes,
          runs.arena_bytes, runs.param_bytes
        from runs
        join ops as o on o.run = runs.id and o.op = (
          select p.op from ops as p where p.run = runs.id and p.live_bytes is not null
          order by p.live_bytes desc, p.op limit 1
        )
        """,
    ),
    View(
        "live_at_peak",
        "The buffers in memory while the op of `memory_peak` runs: temporary tensors, including "
        "its callers', working memory, inputs, params and states.",
        (
            ("run", "the run"),
            ("op", "the op of memory_peak"),
            ("kind", "temporary, workspace, input, param, state or const"),
            ("name", "path of the tensor, the first that uses the buffer"),
            ("type", "its type"),
            ("nbytes", "size in bytes"),
            ("first_op, last_op", "first and last op that run while it is in use"),
        ),
        """
        with recursive holding (run, peak, op) as (
          select run, op, op from memory_peak
          union
          select h.run, h.peak, b.caller from holding as h
          join buffers as b on b.run = h.run and h.op between b.first_op and b.last_op
          where b.caller is not null
        )
        select distinct h.run, h.peak as op, b.kind, b.name, b.type, b.nbytes,
          case when b.kind in ('param', 'state') then null else b.first_op end as first_op,
          case when b.kind in ('param', 'state') then null else b.last_op end as last_op
        from holding as h
        join buffers as b on b.run = h.run and h.op between b.first_op and b.last_op
        """,
    ),
    View(
        "run_compare",
        "The ops of two runs side by side, by site: whether their statistics are equal in every "
        "step, and those of the last step. Select by run and other, order by op; "
        "`opstep ws FILE compare` names the first step that differs.",
        (
            ("run", "one run"),
            ("other", "the other run"),
            ("op", "number of the op in `run`"),
            ("site", "frame and first result of the op, the same in both"),
            ("name", "name of the op"),
            ("line", "line of its statement in `run`"),
            (
                "same",
                "1 if the op's statistics are equal in every step; null: none were recorded",
            ),
            ("executions, other_executions", "how often it ran, in recorded steps"),
            ("total_ns, other_total_ns", "total time"),
            ("step", "the last step that both finished; the statistics are from this step"),
            ("value", "name of the tensor"),
            ("mean, other_mean", "and likewise std, absmax, nan, inf"),
        ),
        """
        select o.run, p.run as other, o.op, o.site, o.name, o.line,
          case when o.digest is not null or p.digest is not null
            then o.digest is p.digest end as same,
          o.executions, p.executions as other_executions,
          o.total_ns, p.total_ns as other_total_ns,
          t.step, r.name as value, s.mean, z.mean as other_mean, s.std, z.std as other_std,
          s.absmax, z.absmax as other_absmax, s.nan, z.nan as other_nan,
          s.posinf + s.neginf as inf, z.posinf + z.neginf as other_inf
        from ops as o
        cross join ops as p indexed by ops_by_site_run on p.site = o.site and p.run <> o.run
        cross join (select run, max(step) as step from steps group by run) as mine
          on mine.run = o.run
        cross join (select run, max(step) as step from steps group by run) as theirs
          on theirs.run = p.run
        left join steps as t on t.run = o.run and t.step = min(mine.step, theirs.step)
        left join results as r on r.run = o.run and r.op = o.op
        left join stats as s on s.run = o.run and s.step = t.step and s.op = o.op
          and s.result = r.result
        left join stats as z on z.run = p.run and z.step = t.step and z.op = p.op
          and z.result = r.result
        """,
    ),
)
