"""Memory: lifetimes, sharing, packing."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
from plan_programs import OPS, SIZE, planned, prepare, verified
from test_schedule import branches, graph

from opstep.runtime.ir.types import TensorType, f32
from opstep.runtime.plan.hazards import check
from opstep.runtime.plan.packing import ALIGNMENT, Blocks, pack
from opstep.runtime.plan.plan import Alloc, Call, Fill, Free, Plan, Policy, Run, Wait
from opstep.runtime.plan.planner import make_plan

N = f"f32[{SIZE}]"
REUSE, FRESH = Policy(1), Policy(1, "fresh")


def buffer_of(plan: Plan, name: str) -> int:
    """The buffer of the last value of that name."""
    return [v.buffer for v in plan.values if v.name == name][-1]


def live_sum(plan: Plan) -> int:
    """The largest sum of bytes of temps between their first and last use, in order of issue."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for k, i in enumerate(plan.instructions):
        if isinstance(i, (Run, Call)):
            step = plan.steps[i.step]
            for b in (*step.reads, *step.writes):
                if plan.buffers[b].kind == "temp":
                    first.setdefault(b, k)
                    last[b] = k
    last |= dict.fromkeys((plan.values[v].buffer for v in plan.outputs), len(plan.instructions))
    times = sorted(set(first.values()))
    return max(
        (sum(plan.buffers[b].nbytes for b in first if first[b] <= t <= last[b]) for t in times),
        default=0,
    )


def test_dead_buffers_are_reused():
    text = graph(*[f"v{k} = copy({f'v{k - 1}' if k else 'x'})" for k in range(50)], returned="v49")
    plan = planned(text, REUSE)
    assert plan.arena == plan.peak == 2 * ALIGNMENT
    assert check(plan) == []


def test_a_result_takes_over_an_operand_that_dies():
    plan = planned(graph("a = copy(x)", "b = relu(a)", "c = add(b, x)", returned="c"), REUSE)
    assert buffer_of(plan, "a") == buffer_of(plan, "b") == buffer_of(plan, "c")
    assert plan.arena == ALIGNMENT


@pytest.mark.parametrize(
    "lines, why",
    [
        (["a = relu(x)"], "an input is not the run's to overwrite"),
        (["b = copy(x)", "a = relu(b)", "c = add(a, b)"], "it is read later"),
        (["b = copy(x)", "v = view(b)", "a = relu(b)", "c = add(a, v)"], "a view is read later"),
        (["b = copy(x)", "f = flat(b)", "a = mix(b, f)"], "the op does not offer it"),
    ],
    ids=lambda p: p if isinstance(p, str) else "",
)
def test_a_result_does_not_take_over(lines, why):
    plan = planned(graph(*lines, "y = copy(a)", returned="y"), REUSE)
    step = next(s for s in plan.steps if plan.values[s.results[0]].name == "a")
    assert not set(step.reads) & set(step.writes)
    assert check(plan) == []


def test_what_is_overwritten_is_taken_over_from_streams_that_led_to_the_part():
    lines = ["a = copy(x)", "p = heavy(a)", "q = heavy(a)", "r = mix(p, q)", "b = put(a, r)"]
    plan = planned(graph(*lines, "y = copy(b)", returned="y"), Policy(3))
    assert buffer_of(plan, "a") == buffer_of(plan, "b")
    assert check(plan) == []
    lines = ["a = copy(x)", "p = heavy(a)", "q = heavy(a)", "b = put(a, p)", "y = mix(b, q)"]
    plan = planned(graph(*lines, returned="y"), Policy(3))
    assert buffer_of(plan, "a") != buffer_of(plan, "b")
    assert check(plan) == []


def test_an_operand_that_is_an_output_too_is_not_taken_over():
    plan = planned(graph("b = copy(x)", "a = relu(b)", returned="a, b", results=2), REUSE)
    assert buffer_of(plan, "a") != buffer_of(plan, "b")


def test_another_view_of_an_operand_forbids_to_take_it_over():
    text = (
        "graph main(x: f32[2, N]) -> f32[N*2] {\n"
        "  b = copy(x)\n  f = flat(b)\n  g = spread(b, shape=[N*2])\n  h = flat(g)\n"
        "  a = add(f, f)\n  c = add(a, h)\n  return c\n}"
    )
    plan = planned(text, REUSE, (2, 4))
    steps = {plan.values[s.results[0]].name: s for s in plan.steps if s.results}
    assert set(steps["a"].reads) == set(steps["a"].writes)  # both operands are the same view
    assert check(plan) == []


def test_an_op_takes_over_at_most_one_buffer_for_each_result():
    plan = planned(graph("a = copy(x)", "p, q = pair(a)", "r = mix(p, q)", returned="r"), REUSE)
    assert buffer_of(plan, "p") == buffer_of(plan, "a")
    assert buffer_of(plan, "q") != buffer_of(plan, "a")


def test_results_of_a_wider_type_do_not_take_over():
    text = (
        "graph main(x: f16[N], y: f32[N]) -> f32[N] {\n"
        "  a = copy(x)\n  b = add(a, y)\n  return b\n}"
    )
    program = verified(text)
    types = [TensorType(t, (4,)) for t in (_f16(), f32)]
    plan = make_plan(program, "main", types, REUSE)
    assert buffer_of(plan, "a") != buffer_of(plan, "b")


def _f16():
    from opstep.runtime.ir.types import f16

    return f16


def test_fresh_memory_is_never_reused_freed_or_placed():
    plan = planned(graph("a = copy(x)", "b = relu(a)", "c = add(b, x)", returned="c"), FRESH)
    temps = [k for k, b in enumerate(plan.buffers) if b.kind == "temp"]
    assert len(temps) == 3
    assert all(plan.buffers[b].offset == -1 for b in temps)
    assert [i.buffer for i in plan.instructions if isinstance(i, Alloc)] == temps
    assert not any(isinstance(i, Free) for i in plan.instructions)
    assert plan.arena == 0


def test_working_memory_lives_for_its_step_only():
    plan = planned(graph("a = work(x)", "b = work(a)", "c = work(b)", returned="c"), REUSE)
    spaces = [s.workspace for s in plan.steps]
    assert len(set(spaces)) == 3
    assert plan.arena == 4 * ALIGNMENT  # operand, result and 96 bytes
    assert [s.launches for s in plan.steps] == ["work"] * 3
    assert check(plan) == []


def test_outputs_live_to_the_end():
    lines = ["a = copy(x)", *(f"v{k} = copy({f'v{k - 1}' if k else 'x'})" for k in range(9))]
    plan = planned(graph(*lines, returned="a, v8", results=2), REUSE)
    freed = {i.buffer for i in plan.instructions if isinstance(i, Free)}
    assert buffer_of(plan, "a") not in freed
    assert check(plan) == []


def test_empty_tensors_take_no_memory():
    text = "graph main(x: f32[N]) -> f32[N] {\n  a = copy(x)\n  b = mix(a, x)\n  return b\n}"
    for policy in (REUSE, FRESH, Policy(4), Policy(4, "reuse", "nan")):
        plan = planned(text, policy, (0,))
        assert (plan.arena, plan.peak) == (0, 0)
        assert check(plan) == []


def test_fill_happens_once_for_a_buffer_that_is_taken_over():
    plan = planned(graph("a = copy(x)", "b = relu(a)", returned="b"), Policy(1, "reuse", "nan"))
    assert sum(isinstance(i, Fill) for i in plan.instructions) == 1
    assert check(plan) == []


# --- several streams ------------------------------------------------------------------------------


def test_branches_that_run_in_parallel_do_not_share():
    """Memory must not make them wait for each other: no more waits than with fresh memory."""
    text = branches(4, 12)
    shared, fresh = planned(text, Policy(4)), planned(text, Policy(4, "fresh"))
    assert shared.streams == fresh.streams == 4
    assert _waits(shared) == _waits(fresh) == 3
    assert shared.arena <= 4 * 2 * ALIGNMENT
    assert check(shared) == []


def test_what_was_long_dead_is_shared_across_streams_with_an_edge():
    lines = ["a0 = heavy(x)"]
    lines += [f"a{k + 1} = heavy(a{k})" for k in range(3)]
    lines += [f"b{k + 1} = heavy({f'b{k}' if k else 'x'})" for k in range(60)]
    lines += [f"c{k + 1} = heavy({f'c{k}' if k else 'a3'})" for k in range(60)]
    lines += ["y = mix(b60, c60)"]
    plan = planned(graph(*lines, returned="y"), Policy(2))
    assert check(plan) == []


def test_an_operand_that_another_stream_reads_is_not_taken_over():
    text = graph(
        "a = heavy(x)", "l = heavy(a)", "l2 = heavy(l)", "r = relu(a)", "r2 = heavy(r)",
        "r3 = heavy(r2)", "y = mix(l2, r3)", returned="y",
    )  # fmt: skip
    plan = planned(text, Policy(2))
    assert plan.streams == 2
    assert buffer_of(plan, "r") != buffer_of(plan, "a")
    assert _waits(plan) == 2


def _waits(plan: Plan) -> int:
    return sum(isinstance(i, Wait) for i in plan.instructions)


# --- packing --------------------------------------------------------------------------------------

ALEXNET = [(96, 55, 55), (96, 55, 55), (96, 27, 27), (256, 27, 27), (256, 27, 27), (256, 13, 13),
           (384, 13, 13), (384, 13, 13), (384, 13, 13), (384, 13, 13), (256, 13, 13), (256, 13, 13),
           (256, 5, 5), (4096,), (4096,), (4096,), (4096,), (10,)]  # fmt: skip


def shapes_program(values: Iterable[tuple[str, tuple[int, ...], tuple[str, ...]]]) -> str:
    """Statements that give values of these shapes from one or two others."""
    lines = ["graph main(x: f32[1, 3, 64, 64]) -> f32[] {"]
    name = "x"
    for name, shape, operands in values:
        text = ", ".join(map(str, shape))
        if len(operands) == 2:  # a concatenation, as far as memory is concerned
            lines.append(f"  {name} = join({operands[0]}, {operands[1]}, shape=[{text}])")
        else:
            lines.append(f"  {name} = spread({operands[0]}, shape=[{text}])")
    return "\n".join([*lines, f"  end = total({name})", "  return end", "}"])


def unet(base: int, size: int, depth: int):
    """Values of a U-Net: two convolutions a level, pooling, upsampling, skips, two convolutions."""
    values, skips, last = [], [], "x"

    def add(name, channels, edge, *operands):
        nonlocal last
        values.append((name, (channels, edge, edge), operands or (last,)))
        last = name

    for level in range(depth):
        channels, edge = base * 2**level, size // 2**level
        for part in ("conv1", "norm1", "relu1", "conv2", "norm2", "relu2"):
            add(f"down{level}_{part}", channels, edge)
        skips.append((last, channels, edge))
        add(f"pool{level}", channels, edge // 2)
    for level in reversed(range(depth)):
        skip, channels, edge = skips[level]
        add(f"up{level}", channels, edge)
        add(f"join{level}", 2 * channels, edge, skip, last)
        for part in ("conv1", "norm1", "relu1", "conv2", "norm2", "relu2"):
            add(f"up{level}_{part}", channels, edge)
    return values


def shape_plan(values, streams: int) -> Plan:
    from plan_programs import _declare

    join = _declare(
        "join(x: N, y: N, *, shape: dims)", lambda x, y, shape: TensorType(x.dtype, shape)
    )
    from opstep.runtime.ir.parser import parse
    from opstep.runtime.ir.verify import verify

    program = verify(parse(shapes_program(values)), ops={**OPS, "join": join})
    return make_plan(program, "main", [TensorType(f32, (1, 3, 64, 64))], Policy(streams), prepare)


@pytest.mark.parametrize("streams", [1, 4])
@pytest.mark.parametrize(
    "values",
    [
        [(f"v{k}", s, (f"v{k - 1}" if k else "x",)) for k, s in enumerate(ALEXNET)],
        unet(16, 64, 2),
        unet(64, 256, 4),
        unet(8, 128, 5),
    ],
    ids=["alexnet", "small unet", "unet", "deep unet"],
)
def test_the_arena_is_hardly_larger_than_what_is_live_at_once(values, streams):
    plan = shape_plan(values, streams)
    assert plan.arena <= 1.1 * live_sum(plan)
    assert plan.peak <= plan.arena
    assert check(plan) == []


def blocks(*rows: tuple[int, int, int]) -> Blocks:
    """Blocks of (units of 64 bytes, begin, end)."""
    return Blocks([64 * r[0] for r in rows], [r[1] for r in rows], [r[2] for r in rows])


def test_packing_keeps_apart_what_lives_together():
    for seed in range(40):
        rng = random.Random(seed)
        rows = sorted(
            ((rng.randint(1, 9), b, b + rng.randint(1, 12)) for b in range(60)), key=lambda r: r[1]
        )
        given = blocks(*rows)
        offsets, arena, peak, _ = pack(given)
        assert peak == max(sum(64 * s for s, b, e in rows if b <= t < e) for t in range(80))
        assert arena <= 1.15 * peak
        for i in range(60):
            for j in range(i):
                apart_in_time = given.end[j] <= given.begin[i] or given.end[i] <= given.begin[j]
                apart = (
                    offsets[i] + given.size[i] <= offsets[j]
                    or offsets[j] + given.size[j] <= offsets[i]
                )
                assert apart_in_time or apart
        assert all(o % ALIGNMENT == 0 for o in offsets)


def test_packing_by_size_fills_what_best_fit_leaves():
    """A small block first, then growing ones: best fit in time must always add at the top."""
    rows = [(k + 1, k, k + 2) for k in range(30)]
    _, arena, peak, _ = pack(blocks(*rows))
    assert arena <= 1.1 * peak


def test_packing_begins_with_what_lives_when_most_does():
    """Values that are kept for the way back, and short ones of other sizes between them."""
    excess = []
    for seed in range(10):
        rng, rows = random.Random(seed), []
        for k in range(60):
            rows.append((rng.choice([3, 8, 12]), 2 * k, 240 - 2 * k))
            rows.append((rng.choice([1, 9, 12]), 2 * k + 1, 2 * k + 3))
            rows.append((rng.choice([7, 9]), 240 - 2 * k, 243 - 2 * k + rng.randint(0, 60)))
        _, arena, peak, _ = pack(blocks(*sorted(rows, key=lambda r: r[1])))
        excess.append(arena / peak - 1)
    assert sum(excess) / len(excess) < 0.018
