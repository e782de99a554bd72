"""The common questions: canned queries of Datasette, each with a title, a text and parameters, and
pages of tables where these answer them.

The parameter `run` is a run's key or number; if empty, the last run.
"""

from __future__ import annotations

from typing import NamedTuple


class Question(NamedTuple):
    name: str  # in its address
    title: str
    what: str
    params: dict[str, str]  # what each stands for
    sql: str

    @property
    def address(self) -> str:
        """Parameters follow."""
        return f"{self.name}?"


class TablePage(NamedTuple):
    """A question that a table of Datasette answers, filtered and sorted."""

    title: str
    what: str
    address: str  # its last parameters follow


RUN = {"run": "key or number of a run; empty: the last one"}
STEP = {"step": "a step; empty: all of them"}

CHOSEN = """\
with chosen as (
  select id, every, max(1, coalesce(steps, 0) / every / 1000) as stride from runs
  where :run = '' or key = :run or id = :run
  order by id desc limit 1
)
"""

QUESTIONS = (
    Question(
        "line_by_line",
        "What did each line do?",
        "The program, with the ops of each line, their total time, and the statistics of the "
        "line's last tensor at a step.",
        RUN | {"step": "a step; empty: the last with statistics"},
        CHOSEN
        + """\
, text as (
  select key + 1 as line, replace(value, char(26), '\\') as text
  from json_each((
    select '[' || replace(json_quote(replace(program, '\\', char(26))), '\\n', '","') || ']'
    from runs where id = (select id from chosen)))
), planned as (
  select * from ops where run = (select id from chosen)
    and file = (select file from runs where id = (select id from chosen))
), spent as (
  select line, group_concat(distinct name) as ops, sum(total_ns) as total_ns from planned
  group by line
), seen as (
  select o.line, s.op, s.result, s.step, s.mean, s.std, s.absmax, s.nan,
    s.posinf + s.neginf as inf, s.histogram, s.lowest, max(s.execution * 1000 + s.result)
  from planned o
  cross join stats s on s.run = o.run and s.op = o.op and s.step = (
    select case when :step = '' then max(step) else cast(:step as integer) end from stats
    where run = (select id from chosen))
  group by o.line
), wrong as (
  select line, group_concat('step ' || step || ': ' || message, '; ') as finding from findings
  where run = (select id from chosen) and (
    coalesce(file, '') = '' or file = (select file from runs where id = (select id from chosen)))
  group by line
)
select (select id from chosen) as run, t.line, t.text, p.ops, p.total_ns,
  1.0 * p.total_ns / sum(p.total_ns) over () as share, r.name as tensor,
  r.dtype || r.shape as type, s.mean, s.std, s.absmax, s.nan, s.inf, s.histogram,
  s.lowest, w.finding
from text t
left join spent p on p.line = t.line
left join seen s on s.line = t.line
left join results r on r.run = (select id from chosen) and r.op = s.op and r.result = s.result
left join wrong w on w.line = t.line
order by t.line""",
    ),
    Question(
        "where_it_went_bad",
        "Where did it go bad?",
        "The tensors with a NaN or an infinity at the first step that has one, in order of "
        "execution: it was born in the first.",
        RUN,
        CHOSEN
        + """\
, bad as (
  select * from stats indexed by stats_by_run_step
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
        "Ops by total time, of the kernels, not of the host.",
        RUN,
        CHOSEN
        + """\
select o.run, o.line, o.name as op_name, o.executions, o.total_ns,
  1.0 * o.total_ns / sum(o.total_ns) over () as share,
  o.total_ns / o.executions as mean_ns, o.least_ns, o.most_ns,
  cast(o.flops * 1e9 * o.executions / nullif(o.total_ns, 0) as integer) as flops_a_second,
  o.bytes, o.statement, o.op, o.file
from ops o
where o.run = (select id from chosen) and o.total_ns is not null
order by o.total_ns desc
limit 100""",
    ),
    Question(
        "history_of_a_tensor",
        "How did a tensor change?",
        "Statistics of one tensor by step, with a plot; for long runs, at most 2,000 steps.",
        RUN | {"tensor": "name of the tensor in its graph, such as `logits`"},
        CHOSEN
        + """\
select s.step, s.mean, s.std, s.min, s.max, s.absmax, s.l2, s.nan, s.posinf + s.neginf as inf,
  s.histogram, s.lowest, o.site, o.line, s.run, s.op
from results r
cross join ops o on o.run = r.run and o.op = r.op
cross join steps t on t.run = r.run
cross join stats s on s.run = t.run and s.step = t.step and s.op = r.op and s.result = r.result
where r.run = (select id from chosen) and r.name = :tensor
  and t.step / (select every from chosen) % (select stride from chosen) = 0
order by o.op, s.step, s.execution
limit 5000""",
    ),
    Question(
        "compare_two_runs",
        "How do two runs differ?",
        "Tensors of both runs at the same step; those whose statistics differ come first, in "
        "order of execution.",
        {
            "run": "the first run: key or number; empty: the last but one",
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
  and a.nan is b.nan), a.op, a.execution
limit 500""",
    ),
    Question(
        "metrics_by_step",
        "How did the loss go?",
        "Scalar results of the graph by step, and `seconds`, the duration of the step; for long "
        "runs, at most 2,000 steps.",
        RUN | {"name": "name of the metric; empty: all but `seconds`"},
        CHOSEN
        + """\
select m.step, m.name, m.value, m.run
from metrics m
where m.run = (select id from chosen)
  and (m.name = :name or (:name = '' and m.name <> 'seconds'))
  and m.step % (select stride * every from chosen) = 0
order by m.name, m.step
limit 5000""",
    ),
    Question(
        "what_an_op_did",
        "What did an op do at a step?",
        "The executions of an op, with the statistics of its results; at most 1,000.",
        RUN | {"op_name": "its name (`conv2d`), number, or site; * and ? are wildcards"} | STEP,
        CHOSEN
        + """\
, asked as (
  select * from ops
  where run = (select id from chosen)
    and (:op_name = '' or op = :op_name or name glob :op_name or site glob :op_name)
), seen as (
  select t.step, s.execution, s.result, o.op, s.mean, s.std, s.min, s.max, s.nan,
    s.histogram, s.lowest
  from steps t
  cross join asked o
  cross join stats s on s.run = t.run and s.step = t.step and s.op = o.op
  where t.run = (select id from chosen) and (:step = '' or t.step = cast(:step as integer))
  union all
  select e.step, e.execution, null, e.op, null, null, null, null, null, null, null
  from executions e join asked o on o.op = e.op
  where e.run = (select id from chosen) and (:step = '' or e.step = cast(:step as integer))
    and not exists (select 1 from stats where run = (select id from chosen))
  limit 1000
)
select o.run, s.step, o.line, o.name as op_name, r.name as tensor, e.stream, e.turn,
  e.end_ns - e.start_ns as took_ns, s.mean, s.std, s.min, s.max, s.nan,
  s.histogram, s.lowest, o.operands, o.op
from seen s
join asked o on o.op = s.op
left join executions e on e.run = o.run and e.execution = s.execution
left join results r on r.run = o.run and r.op = o.op and r.result = s.result
order by s.step, s.execution, s.result""",
    ),
    Question(
        "what_is_dead",
        "Which activations are dead?",
        "Tensors by their share of zeros, at the last step with statistics.",
        RUN,
        CHOSEN
        + """\
select s.run, s.step, o.line, o.name as op_name, r.name as tensor, s.zero, s.count,
  1.0 * s.zero / s.count as share, s.mean, s.std, s.histogram, s.lowest, o.statement, s.op
from stats s
join ops o using (run, op)
join results r using (run, op, result)
where s.run = (select id from chosen) and s.count > 0
  and s.step = (select max(step) from stats where run = (select id from chosen))
order by share desc, s.op
limit 100""",
    ),
)

RUNS = TablePage(
    "How did the runs go?", "The runs, latest first: status, duration, settings.", "runs?"
)
OF_A_RUN = (
    TablePage(
        "When does memory peak?",
        "Ops by the memory of all temporary tensors while they run.",
        "ops?_col=line&_col=name&_col=live_bytes&_col=statement&_sort_desc=live_bytes&",
    ),
    TablePage("Which tensors are large?", "Results of ops by size.", "results?_sort_desc=nbytes&"),
)
