"""The usual questions, as canned queries of Datasette: each has a title, a text and parameters.

The parameter `run` is a run's key or number; empty, it is the last run.
"""

from __future__ import annotations

from typing import NamedTuple


class Question(NamedTuple):
    name: str  # in its address
    title: str
    what: str
    params: dict[str, str]  # what each stands for
    sql: str


RUN = {"run": "key or number of a run; empty: the last one"}
STEP = {"step": "a step; empty: all of them"}

CHOSEN = """\
with chosen as (
  select id from runs
  where :run = '' or key = :run or id = :run
  order by id desc limit 1
)
"""

QUESTIONS = (
    Question(
        "where_it_went_bad",
        "Where did it go bad?",
        "The tensors with a NaN or an infinity at the first step that has one, in the order in "
        "which they were computed: the first is where it was born.",
        RUN,
        CHOSEN
        + """\
, bad as (
  select * from stats
  where run = (select id from chosen) and (nan > 0 or posinf > 0 or neginf > 0)
)
select s.run, s.step, o.line, o.name as op_name, r.name as tensor,
  s.nan, s.posinf, s.neginf, s.count, s.min, s.max, o.statement, s.op, o.file
from bad s
join ops o using (run, op)
join results r using (run, op, result)
left join executions e using (run, execution)
where s.step = (select step from bad order by step limit 1)
order by coalesce(e.start_ns, 0), s.execution, s.result
limit 50""",
    ),
    Question(
        "what_is_slow",
        "What is slow?",
        "Ops by the time they took in all steps together. Times are those of the kernels.",
        RUN,
        CHOSEN
        + """\
, times as (
  select run, op, count(*) as executions, sum(end_ns - start_ns) as total_ns,
    min(end_ns - start_ns) as least_ns, max(end_ns - start_ns) as most_ns
  from executions
  where run = (select id from chosen) and start_ns is not null
  group by run, op
)
select t.run, o.line, o.name as op_name, t.executions, t.total_ns,
  1.0 * t.total_ns / sum(t.total_ns) over () as share,
  t.total_ns / t.executions as mean_ns, t.least_ns, t.most_ns,
  cast(o.flops * 1e9 * t.executions / nullif(t.total_ns, 0) as integer) as flops_a_second,
  o.bytes, o.statement, t.op
from times t join ops o using (run, op)
order by t.total_ns desc
limit 100""",
    ),
    Question(
        "what_lines_cost",
        "What does each line cost?",
        "The time of all ops of a line of the program, in all steps together.",
        RUN,
        CHOSEN
        + """\
select e.run, o.line, count(distinct o.op) as ops, count(*) as executions,
  sum(e.end_ns - e.start_ns) as total_ns,
  1.0 * sum(e.end_ns - e.start_ns) / sum(sum(e.end_ns - e.start_ns)) over () as share,
  o.file, o.statement
from executions e join ops o using (run, op)
where e.run = (select id from chosen) and e.start_ns is not null
group by e.run, o.file, o.line
order by total_ns desc
limit 100""",
    ),
    Question(
        "history_of_a_tensor",
        "How did a tensor change?",
        "Statistics of one tensor, step by step, with a plot.",
        RUN | {"tensor": "name of the tensor in its graph, such as `logits`"},
        CHOSEN
        + """\
select s.step, s.mean, s.std, s.min, s.max, s.absmax, s.l2, s.nan, s.posinf + s.neginf as inf,
  s.histogram, s.lowest, o.site, o.line, s.run, s.op
from results r
join stats s using (run, op, result)
join ops o using (run, op)
where r.run = (select id from chosen) and r.name = :tensor
order by o.op, s.step, s.execution
limit 2000""",
    ),
    Question(
        "compare_two_runs",
        "How do two runs differ?",
        "Tensors of both runs at the same step, those of other statistics first in the order in "
        "which they were computed.",
        {
            "run": "the first run: key or number; empty: the one before the last",
            "other": "the second run: key or number; empty: the last one",
            "step": "a step; empty: the first",
        },
        """\
with last as (
  select id from runs where :other = '' or key = :other or id = :other order by id desc limit 1
), chosen as (
  select id from runs
  where (:run = '' and id < (select id from last)) or key = :run or id = :run
  order by id desc limit 1
)
select a.step, oa.line, oa.name as op_name, r.name as tensor,
  abs(a.mean - b.mean) / nullif(max(abs(a.mean), abs(b.mean)), 0) as difference,
  a.mean as mean_a, b.mean as mean_b, a.std as std_a, b.std as std_b,
  a.absmax as absmax_a, b.absmax as absmax_b, a.nan as nan_a, b.nan as nan_b,
  oa.statement, a.run, a.op
from ops oa
join ops ob on ob.run = (select id from last) and ob.site = oa.site
join stats a on a.run = oa.run and a.op = oa.op and a.step = cast(:step as integer)
join stats b on b.run = ob.run and b.op = ob.op and b.step = a.step and b.result = a.result
join results r on r.run = a.run and r.op = a.op and r.result = a.result
where oa.run = (select id from chosen)
order by (a.mean is b.mean and a.std is b.std and a.min is b.min and a.max is b.max
  and a.nan is b.nan), a.execution
limit 500""",
    ),
    Question(
        "metrics_by_step",
        "How did the loss go?",
        "Scalar results of the graph by step, and `seconds`, what the step took.",
        RUN | {"name": "of the metric; empty: all but `seconds`"},
        CHOSEN
        + """\
select m.step, m.name, m.value, m.run
from metrics m
where m.run = (select id from chosen)
  and (m.name = :name or (:name = '' and m.name <> 'seconds'))
order by m.name, m.step
limit 5000""",
    ),
    Question(
        "when_memory_peaks",
        "When does memory peak?",
        "Ops by the memory that all temporary tensors take while they run.",
        RUN,
        CHOSEN
        + """\
select o.run, o.line, o.name as op_name, o.live_bytes,
  1.0 * o.live_bytes / nullif(max(o.live_bytes) over (), 0) as share,
  o.plan, o.statement, o.op
from ops o
where o.run = (select id from chosen) and o.live_bytes is not null
order by o.live_bytes desc, o.op
limit 50""",
    ),
    Question(
        "biggest_tensors",
        "Which tensors are large?",
        "Results of ops by their size.",
        RUN,
        CHOSEN
        + """\
select r.run, o.line, r.name as tensor, r.dtype, r.shape, r.nbytes, o.name as op_name,
  o.statement, r.op
from results r join ops o using (run, op)
where r.run = (select id from chosen)
order by r.nbytes desc, r.op
limit 50""",
    ),
    Question(
        "what_an_op_did",
        "What did an op do at a step?",
        "Every execution of an op, with the statistics of what it gave.",
        RUN | {"op_name": "its name (`conv2d`), number, or site; * and ? stand for others"} | STEP,
        CHOSEN
        + """\
select e.run, e.step, o.line, o.name as op_name, r.name as tensor, e.stream, e.turn,
  e.end_ns - e.start_ns as took_ns, s.mean, s.std, s.min, s.max, s.nan,
  s.histogram, s.lowest, o.operands, o.op
from ops o
join executions e using (run, op)
left join stats s using (run, execution)
left join results r on r.run = o.run and r.op = o.op and r.result = s.result
where o.run = (select id from chosen)
  and (:op_name = '' or o.op = :op_name or o.name glob :op_name or o.site glob :op_name)
  and (:step = '' or e.step = cast(:step as integer))
order by e.execution, s.result
limit 1000""",
    ),
    Question(
        "ops_of_a_line",
        "Which ops come from a line?",
        "The ops that were planned for a line of the program, with their operands.",
        RUN | {"line": "of the program, from 1"},
        CHOSEN
        + """\
select o.run, o.line, o.op, o.name as op_name, o.site, o.statement, o.operands, o.attrs,
  o.stream, o.bytes, o.flops, o.file
from ops o
where o.run = (select id from chosen) and (:line = '' or o.line = cast(:line as integer))
order by o.line, o.op
limit 500""",
    ),
    Question(
        "what_is_dead",
        "Which activations are dead?",
        "Tensors by their share of zeros, at the last step whose statistics were taken.",
        RUN,
        CHOSEN
        + """\
, latest as (
  select o.run, o.op,
    (select max(step) from stats s where s.run = o.run and s.op = o.op) as step
  from ops o where o.run = (select id from chosen)
)
select s.run, s.step, o.line, o.name as op_name, r.name as tensor, s.zero, s.count,
  1.0 * s.zero / s.count as share, s.mean, s.std, s.histogram, s.lowest, o.statement, s.op
from latest l
join stats s using (run, op, step)
join ops o using (run, op)
join results r using (run, op, result)
where s.count > 0
order by share desc, s.op
limit 100""",
    ),
)
