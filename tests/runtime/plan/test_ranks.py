"""Ranks that do not match are named with both lines, and sound programs are not."""

from __future__ import annotations

import re
from itertools import pairwise
from time import monotonic

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import opstep
from opstep.api.ranks import Part, rank_mismatches
from opstep.runtime.ir.errors import InputError
from opstep.runtime.plan import rank_traces
from opstep.runtime.plan.hazards import check
from opstep.runtime.plan.rank_traces import talk_of

BRANCHES = """graph main(x: f32[8]) -> f32[8] {
  r = rank()
  first = equal(r, 0)
  y = cond(first, x, then=one, else=other)
  z = all_reduce(y)
  return z
}
"""
KINDS = ("all_reduce", "max", "all_gather", "broadcast", "barrier")
LINES = {
    "all_reduce": "{y} = all_reduce({x}, over={axis})",
    "max": '{y} = all_reduce({x}, over={axis}, reduction="max")',
    "all_gather": "{y}_all = all_gather({x}, over={axis})\n"
    "  {y} = slice({y}_all, starts=[0], ends=[8])",
    "broadcast": "{y} = broadcast_from({x}, root=1, over={axis})",
    "barrier": "{y} = barrier({x}, over={axis})",
}


def faults(text: str, **how):
    return rank_mismatches(Part(opstep.loads(text, "ranks.opg", **how)))


def body(name: str, lines: list[str]) -> str:
    return f"graph {name}(x: f32[8]) -> f32[8] {{\n" + "".join(f"  {s}\n" for s in lines) + "}\n"


def statements(kinds, x: str = "x") -> list[str]:
    """A chain of collectives, by kind and axis."""
    found = []
    for k, (kind, axis) in enumerate(kinds):
        found.append(LINES[kind].format(x=x, y=f"y{k}", axis=axis))
        x = f"y{k}"
    return [*found, f"return {x}"]


def lines_of(diagnostic) -> list[int]:
    places = [(diagnostic.source, diagnostic.span)]
    places += [(n.source, n.span) for n in diagnostic.notes]
    return [source.locate(span.start)[0] for source, span in places]


chains = st.lists(
    st.tuples(st.sampled_from(KINDS), st.sampled_from(["data", "model", "none"])),
    min_size=1, max_size=6,
)  # fmt: skip


@settings(deadline=None)
@given(chains)
def test_ranks_that_say_the_same_in_other_lines_match(chain):
    text = "mesh data: 2, model: 3\n\n" + BRANCHES
    text += body("one", statements(chain)) + body("other", statements(chain))
    assert not faults(text, mesh={})


@settings(deadline=None)
@given(chains, st.data())
def test_a_line_that_differs_is_named_with_both_lines(chain, data):
    k = data.draw(st.integers(0, len(chain) - 1))
    kind = data.draw(st.sampled_from([n for n in KINDS if n != chain[k][0]]))
    changed = [*chain[:k], (kind, chain[k][1]), *chain[k + 1 :]]
    text = "mesh data: 2, model: 3\n\n" + BRANCHES
    text += body("one", statements(chain)) + body("other", statements(changed))
    found = faults(text, mesh={})
    own = text.split("\n").index(f"  {statements(chain)[k]}".split("\n")[0]) + 1
    heads = [
        n
        for n, line in enumerate(text.split("\n"), 1)
        if re.match(rf"\s+y{k}\w* = (all_|bro|bar)", line)
    ]
    assert len(found) == 1
    assert sorted(lines_of(found[0])) == sorted(heads)
    assert own in heads


@settings(deadline=None)
@given(chains, st.data())
def test_a_line_that_is_missing_is_named(chain, data):
    k = data.draw(st.integers(0, len(chain) - 1))
    text = "mesh data: 2, model: 3\n\n" + BRANCHES
    text += body("one", statements(chain)) + body("other", statements(chain[:k] + chain[k + 1 :]))
    assert faults(text, mesh={})


def pair(one: list[str], other: list[str]) -> str:
    return BRANCHES + body("one", [*one, "return s"]) + body("other", [*other, "return s"])


def test_a_send_meets_its_recv():
    one = ["s = send(x, to=1)", "r = recv(x, source=1)"]
    other = ["r = recv(x, source=0)", "s = send(r, to=0)"]
    assert not faults(pair(one, other), ranks=2)


@pytest.mark.parametrize(
    "one, other, wanted",
    [
        (["s = recv(x, source=1)", "t = send(s, to=1)"],
         ["s = recv(x, source=0)", "t = send(s, to=0)"], "wait for each other"),
        (["s = send(x, to=1)", "t = recv(s, source=1)"],
         ["s = send(x, to=0)", "t = recv(s, source=0)"], "wait for each other"),
        (["s = send(x, to=0)"], ["s = relu(x)"], "waits for itself"),
        (["s = send(x, to=1)"], ["s = relu(x)"], "all_reduce of f32[8], but rank 0 at send"),
        (["h = slice(x, starts=[0], ends=[4])", "t = send(h, to=1)", "s = relu(x)"],
         ["s = recv(x, source=0)"], "send of f32[4], but rank 1 at recv of f32[8]"),
    ],
)  # fmt: skip
def test_pairs_that_do_not_meet(one, other, wanted):
    found = faults(pair(one, other), ranks=2)
    assert wanted in found[0].message
    assert len(found[0].notes) == (0 if "itself" in wanted else 1)


OPEN = """mesh data: 2, model: 2

graph main(x: f32[8]) -> f32[8] {
  m = max(x)
  %s
  c = greater(n, 0.0)
  y = cond(c, x, then=one, else=other)
  return y
}

graph one(x: f32[8]) -> f32[8] {
  y = all_reduce(x, over=model)
  return y
}

graph other(x: f32[8]) -> f32[8] {
  y = relu(x)
  return y
}
"""


@pytest.mark.parametrize(
    "line, together",
    [
        ("n = all_reduce(m)", True),
        ("n = all_reduce(m, over=model)", True),
        ("n = broadcast_from(m)", True),
        ("n = all_reduce(m, over=data)", False),
        ("n = neg(m)", False),
    ],
)
def test_a_branch_by_data_talks_only_where_ranks_decide_together(line, together):
    found = faults(OPEN % line, mesh={})
    assert bool(found) is not together
    if found:
        assert lines_of(found[0]) == [7, 12]


LOOP = """graph main(x: f32[8]) -> f32[8], f32[] {
  m = max(x)
  %s
  y, left = while(x, n, test=more, body=turn)
  return y, left
}

graph more(x: f32[8], n: f32[]) -> bool[] {
  c = greater(n, 0.0)
  return c
}

graph turn(x: f32[8], n: f32[]) -> f32[8], f32[] {
  y = all_reduce(x)
  m = %s
  return y, m
}
"""


@pytest.mark.parametrize(
    "first, then, together",
    [
        ("n = all_reduce(m)", "sub(n, 1.0)", True),
        ("n = all_reduce(m)", "max(y)", True),
        ("n = all_reduce(m)", "max(x)", False),  # in the first turn, x is each rank's own
        ("n = neg(m)", "sub(n, 1.0)", False),
    ],
)
def test_a_loop_by_data_talks_only_where_ranks_go_on_together(first, then, together):
    assert bool(faults(LOOP % (first, then), ranks=4)) is not together


def test_turns_that_are_known_are_counted():
    text = """graph main(x: f32[8]) -> f32[8], i32[] {
  n = rank()
  y, left = while(x, n, test=more, body=turn)
  return y, left
}

graph more(x: f32[8], n: i32[]) -> bool[] {
  c = less(n, 3)
  return c
}

graph turn(x: f32[8], n: i32[]) -> f32[8], i32[] {
  y = all_reduce(x)
  m = add(n, 1)
  return y, m
}
"""
    (found,) = faults(text, ranks=2)  # rank 1 makes a turn less
    assert "says no more" in found.message
    assert not faults(text.replace("n = rank()", "n = extent(dtype=i32)"), ranks=2)


def test_what_is_computed_of_ranks_is_computed_for_each():
    """A sum of one number is that number, whatever others have."""
    lines = [
        "r = rank()",
        "m = sum(r)",
        "c = greater(m, 2)",
        "y = cond(c, x, then=one, else=other)",
    ]
    text = body("main", [*lines, "return y"]) + body("one", statements([("barrier", "none")]))
    text += body("other", statements([("all_reduce", "none")]))
    (found,) = faults(text, ranks=4)
    assert "may each take another way" in found.message  # it is not known, and not guessed
    (found,) = faults(text.replace("sum(r)", "mul(r, 2)"), ranks=4)
    assert "rank 0 is at all_reduce of f32[8], but ranks 2 and 3 at barrier" in found.message


def test_a_long_loop_is_not_followed_to_its_end():
    text = LOOP % ("n = full(shape=[], value=1000000.0)", "sub(n, 1.0)")
    assert not faults(text, ranks=4)


def test_a_tensor_that_ranks_update_differently_decides_for_each():
    text = """state hot: bool[] = false

graph main(x: f32[8]) -> f32[8] {
  y = cond(hot, x, then=one, else=other)
  m = max(x)
  c = greater(m, 0.0)
  hot <- c
  return y
}
""" + OPEN.split("\n\n", 2)[2].replace(", over=model", "")
    assert lines_of(faults(text, ranks=2)[0]) == [4, 11]
    alike = text.replace("m = max(x)", "m1 = max(x)\n  m = all_reduce(m1)")
    assert not faults(alike, ranks=2)


def test_collectives_are_in_one_order_on_all_streams():
    """Each reads the status that the one before it wrote, control flow that has some included."""
    text = """graph main(a: f32[256, 256], b: f32[256, 256]) -> f32[256, 256], f32[256, 256] {
  c = matmul(a, a)
  d = matmul(b, b)
  e = all_reduce(c)
  n = extent(dtype=i32)
  f, k = while(d, n, test=more, body=turn)
  g = all_reduce(d)
  return e, f
}

graph more(x: f32[N, N], k: i32[]) -> bool[] {
  c = less(k, 4)
  return c
}

graph turn(x: f32[N, N], k: i32[]) -> f32[N, N], i32[] {
  y = all_reduce(x)
  next = add(k, 1)
  return y, next
}
"""
    plan = opstep.loads(text, ranks=2).plan("main", policy=opstep.policy(streams=4))
    assert plan.streams > 1
    assert check(plan) == []
    talking = [s for s in plan.steps if s.op.traits.collective or s.op.traits.host]
    assert [s.op.name for s in talking] == ["all_reduce", "while", "all_reduce"]
    for before, after in pairwise(talking):
        assert before.changed == after.touched
    alone = opstep.loads(text).plan("main")
    assert not any(s.touched or s.changed for s in alone.steps)


def test_ranks_with_other_sizes_and_files():
    text = "graph main(x: f32[N]) -> f32[N] {\n  y = all_reduce(x)\n  return y\n}\n"
    own = opstep.loads(text, "a.opg", ranks=4)
    other = opstep.loads(text.replace("main(", "main(", 1), "b.opg", ranks=4)
    alike = {(0, 1, 2): Part(own, symbols={"N": 4}), (3,): Part(other, symbols={"N": 4})}
    assert not rank_mismatches(alike)
    (found,) = rank_mismatches(alike | {(3,): Part(other, symbols={"N": 5})})
    assert "all_reduce of f32[4]" in found.message
    assert "all_reduce of f32[5]" in found.message
    assert {found.source.path, found.notes[0].source.path} == {"a.opg", "b.opg"}
    with pytest.raises(InputError, match="different meshes"):
        rank_mismatches({(0, 1, 2): Part(own), (3,): Part(opstep.loads(text, ranks=2))})


def test_many_ranks_are_checked_once_where_they_are_alike():
    lines = [f"y{k} = all_reduce({f'y{k - 1}' if k else 'x'})" for k in range(1_000)]
    text = body("main", [*lines, "return y999"])
    begin = monotonic()
    assert not faults(text, ranks=1_024)
    assert monotonic() - begin < 60  # ten seconds are promised; no clock of a busy machine is


def test_ways_that_are_looked_at_as_they_are_taken_are_no_fault():
    text = """graph main(x: f32[4]) -> f32[4] {
  m = max(x)
  more = greater(m, 1.0)
  y = cond(more, x, then=talks, else=stays)
  z = OTHERWISE
  return z
}

graph talks(x: f32[4]) -> f32[4] {
  y = all_reduce(x)
  return y
}

graph stays(x: f32[4]) -> f32[4] {
  y = send(x, to=0)
  return y
}
"""
    for otherwise, faults in (("mul(y, 2.0)", 0), ("recv(y, source=0)", 1)):
        part = Part(opstep.loads(text.replace("OTHERWISE", otherwise), ranks=2))
        (found, *_) = rank_mismatches(part)
        assert "may each take another way" in found.message
        left = rank_mismatches(part, checked=True)
        assert (len(left) > 0) == faults, left
        assert not any("another way" in fault.message for fault in left)


TURNS = """mesh data: 1, model: 2

graph main(x: f32[4]) -> f32[4] {
  r = rank(over=data)
  y, k = while(x, r, test=more, body=turn)
  return y
}

graph more(x: f32[4], k: i32[]) -> bool[] {
  m = greater(k, 0)
  return m
}

graph turn(x: f32[4], k: i32[]) -> f32[4], i32[] {
  y = all_reduce(x, over=model)
  n = sub(k, 1)
  return y, n
}
"""


@pytest.mark.parametrize("axis, wanted", [("model", 0), ("data", 20)])
def test_as_many_turns_as_the_ranks_number(axis, wanted, monkeypatch):
    """They are followed once for all ranks, not once for each."""
    told = []
    monkeypatch.setattr(rank_traces, "talk_of", lambda *a: told.append(a) or talk_of(*a))
    text = TURNS.replace("over=model", f"over={axis}")
    assert len(faults(text, mesh={"data": 256, "model": 2})) == wanted
    assert len(told) == 255


def test_turns_within_turns_that_never_end_are_not_followed_for_ever():
    inner = "graph outer(x: f32[4], k: i32[]) -> f32[4], i32[] {\n" \
        "  y, n = while(x, k, test=more, body=turn)\n  return y, k\n}\n"  # fmt: skip
    text = TURNS.replace("sub(k, 1)", "add(k, 1)").replace(
        "x, r, test=more, body=turn)", "x, 1, test=more, body=outer)"
    )
    text += inner
    assert not faults(text, mesh={"data": 8, "model": 2})


def test_a_graph_that_calls_itself_as_often_as_the_ranks_number():
    text = """graph main(x: f32[4]) -> f32[4] {
  r = rank()
  y = down(x, r)
  z = all_reduce(y)
  return z
}
graph down(x: f32[4], k: i32[]) -> f32[4] {
  m = greater(k, 0)
  y = cond(m, x, k, then=again, else=done)
  return y
}
graph again(x: f32[4], k: i32[]) -> f32[4] {
  n = sub(k, 1)
  y = down(x, n)
  return y
}
graph done(x: f32[4], k: i32[]) -> f32[4] {
  y = relu(x)
  return y
}
"""
    assert not faults(text, ranks=1_024)
    assert not faults(text.replace("sub(k, 1)", "add(k, 1)"), ranks=4)
