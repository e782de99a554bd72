"""``opstep debug --ranks``: ranks as threads, lockstep, one rank alone, tensors over ranks."""

from __future__ import annotations

import io
import re
import sys

import numpy as np
import pytest
import rank_scenes
from debugged_program import stands

import opstep

STEP = """\
mesh data: 4

param w: f32[2, 3] = ones()

graph main(x: f32[4]) -> f32[], f32[2, 3] {
  r = rank(over=data)
  f = cast(r, dtype=f32)
  own = mean(x)
  mine = add(own, f)
  total = all_reduce(mine, over=data)
  scaled = mul(w, total)
  late = cond(total, scaled, then=kept, else=kept)
  w <- late
  return total, late
}

graph kept(x: f32[2, 3]) -> f32[2, 3] {
  y = mul(x, 1.0)
  return y
}
""".replace("cond(total,", "cond(large,").replace(
    "  late =", "  large = greater(total, 1.0)\n  late ="
)

# Ranks part by what each has been given: nobody knows beforehand.
PARTING = rank_scenes.PARTING.replace("OTHERWISE", "mul(x, 2.0)")


@pytest.fixture
def ranks(cli, write, monkeypatch):
    """Commands to a session on several ranks, of which each has its number in x."""

    def run(*commands, text=STEP, count=4, options=()):
        file = write("step.opg", text)
        for r in range(count):
            np.save(f"x{r}.npy", np.full(4, r, "f4"))
        monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(commands) + "\n"))
        outcome = cli("debug", file, "-i", "x=x{rank}.npy", "--ranks", count, *options)
        assert outcome.code == 0, outcome.err
        assert "internal error" not in outcome.out
        return outcome.out

    return run


def line_of(text: str, part: str) -> int:
    return next(k for k, line in enumerate(text.splitlines(), 1) if part in line)


def test_all_ranks_step_together_forwards_and_back(ranks):
    out = ranks("start", "n 4", "n", "p ranks(total)", "rn 2", "p ranks(mine)", "rs", "rank")
    assert "(opstep rank 0) start" in out and "4 ranks (data: 4)" in out
    first = line_of(STEP, "r = rank")
    assert stands(out)[:3] == [first, first + 4, first + 5]
    assert stands(out)[3:] == [first + 3, first + 2, first + 2]
    assert "ranks(total) = [12.0, 12.0, 12.0, 12.0]" in out
    assert "error" in out.split("p ranks(mine)")[1]  # it is behind that
    assert "ranks 1-3 are at" not in out


def test_values_of_ranks(ranks):
    out = ranks("b 13", "r", "thread 2", "p own", "p own@3", "p own@-1", "p joined(x)[4:9]",
                "p rank", "thread apply all p f", "thread apply 0 2-3 whatis w", "p own@7",
                "p ranks(own, over=\"model\")", "p max(ranks(own)) - own@0")  # fmt: skip
    assert "(opstep rank 2) p own" in out and "own = 2.0" in out and "own@3 = 3.0" in out
    assert "there is no step before this one" in out
    assert "joined(x)[4:9] = [1.0, 1.0, 1.0, 1.0, 2.0]" in out
    assert "\nrank = 2\n" in out
    assert re.findall(r"\[rank (\d)\]\nf = (\d)", out) == [(str(k), str(k)) for k in range(4)]
    assert out.count("type = f32[2, 3]") == 3
    assert "there is no rank 7" in out and "hint: there are 0 to 3" in out
    assert "the mesh has no axis model" in out
    assert "max(ranks(own)) - own@0 = 3.0" in out


def test_breakpoints_on_some_ranks_and_hits_of_each(ranks):
    at = line_of(STEP, "mine = add")
    out = ranks(f"b {at} if rank == 3 and own > 1", "b all_reduce", "r", "c", "info breakpoints")
    assert "[Switching to rank 3]\nBreakpoint 1 on rank 3" in out
    assert "Breakpoint 2 on ranks 0-3" in out
    out = ranks(f"b {at}", "ignore 1 1", "r", "p own", options=("--steps", "2"))
    assert "main [step=1]" in out  # of each rank's hits the first is passed over
    out = ranks(f"b {at} if rank == 3", f"b {at} if rank < 2", "r")
    assert "Breakpoint 1 on rank 3" in out and "Breakpoint 2 on ranks 0, 1" in out


def test_one_rank_alone_goes_as_far_as_the_others_let_it(ranks):
    at = line_of(STEP, "total = all_reduce")
    out = ranks("start", "rank 1", "set scheduler-locking on", "n", "n 9", "info ranks", "rn",
                "info threads", "set scheduler-locking maybe", "set scheduler-locking off",
                "advance 13", "p total", "info ranks")  # fmt: skip
    assert "(opstep rank 1 alone) n" in out
    assert (
        f"Rank 1 waits at all_reduce of f32[] for ranks 0, 2, 3.\nmain (x=f32[4]) at step.opg:{at}"
        in out
    )
    assert f"ranks 0, 2, 3 are at step.opg:{at - 4}" in out
    assert "scheduler-locking is on: commands move rank 1 alone" in out
    assert "error: it is on or off" in out
    assert "total = 12.0" in out and out.count("main at step.opg:13") == 4


def test_a_tensor_compared_over_ranks(ranks):
    at = line_of(STEP, "w <- late")
    out = ranks(f"b {at}", "r", "compare w", "compare x own", "rank 2", "set w[0, 1] = 7", "n",
                "compare", "rn", "set late[1, 2] = 5", "n", "compare w", "p replicated(w)",
                "compare nothing", "compare w over model", "compare w over data")  # fmt: skip
    assert "w is the same on all 4 ranks" in out
    assert "x differs on rank 1 from element [0]: 1.0, on rank 0 0.0 (4 of 4 elements)" in out
    assert "own differs on rank 3 from it: 3.0, on rank 0 0.0 (1 of 1 elements)" in out
    assert "All 1 params and states are the same on all ranks." in out  # it is updated behind that
    expected = (
        "w differs on rank 2 from element [1, 2]: 5.0, on ranks 0, 1, 3 12.0 (1 of 6 elements)"
    )
    assert out.count(expected) == 2
    assert "replicated(w) = False" in out or "replicated(w) = false" in out
    assert "there is no nothing here" in out and "the mesh has no axis model" in out


def test_what_is_set_on_one_rank_reaches_the_others(ranks):
    at = line_of(STEP, "scaled = mul")
    out = ranks(f"b {at}", "r", "p total@3", "rank 2", "set own = 102", "p ranks(total)",
                "info ranks", "set own = was(own)", "p ranks(total)", "c")  # fmt: skip
    assert "total@3 = 12.0" in out and "ranks(total) = [112.0, 112.0, 112.0, 112.0]" in out
    assert out.count(f"main at step.opg:{at}") == 4
    assert "ranks(total) = [12.0, 12.0, 12.0, 12.0]" in out.split("was(own)")[1]
    assert "total = 12.0" in out.split("The run has ended.")[1]


def test_a_deadlock_is_told_with_both_lines(ranks):
    three = PARTING.replace("1.0)", "0.5)")
    out = ranks("run", "rank 0", "rn", text=three, count=2)
    assert "warning: ranks" in out and "may each take another way here" in out
    assert "rank 1 waits for ever at all_reduce of f32[4]: rank 0 has ended" in out
    assert f"step.opg:{line_of(PARTING, 'y = all_reduce')}:7: error:" in out
    assert "[Switching to rank 1]" in out and "rank 0 at the end" in out
    other = three.replace("mul(x, 2.0)", 'all_reduce(x, reduction="max")')
    out = ranks("run", "info ranks", "rc", text=other, count=2)
    assert 'rank 0 waits for ever at all_reduce of f32[4], reduction="max": rank 1 waits at' in out
    assert "note: rank 1 waits here" in out
    out = ranks("run", "rc", "rank 0", "set x[0] = 9", "c", text=three, count=2)
    assert "rank 0: y" not in out and "y = [10.0, 1.0, 1.0, 1.0]" in out  # now both are there


def test_a_nan_names_the_rank(ranks):
    text = STEP.replace("own = mean(x)", "low = sub(x, 2.5)\n  log = log(low)\n  own = mean(log)")
    out = ranks("catch nan origin", "r", "p x[0]", "c", "c", text=text)
    assert "Catchpoint 1 on ranks 0-2" in out
    assert "rank 0: nan: log, the result of log: 4 NaN of 4 elements" in out


def test_results_of_each_rank(ranks):
    text = STEP.replace("return total, late", "return mine, late")
    out = ranks("r", "n", "run", text=text)
    assert "mine = 0.0\n" in out and "mine (rank 3) = 6.0" in out and "late (rank" not in out
    assert "error: the run has ended" in out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--ranks", "0"), "0 is not in the range"),
        (("--ranks", "-1"), "-1 is not in the range"),
        (("--ranks", "x"), "'x' is not a valid integer"),
        (("--ranks", "3"), "the mesh (data: 4) is of 4 ranks, not 3"),
        (("--ranks", "10000", "--mesh", "data=10000"), "10,000 ranks are too many to debug"),
        (("--mesh", "model=2"), "the mesh has no axis model"),
    ],
)
def test_ranks_that_cannot_be(cli, write, options, message):
    file = write("step.opg", STEP)
    outcome = cli("debug", file, "-i", "ones", "-ex", "run", "--batch", *options)
    assert outcome.code == 2 and message in outcome.err


def test_programs_without_collectives_and_commands_for_one_rank(ranks, cli, write, monkeypatch):
    plain = "graph main(x: f32[4]) -> f32[4] {\n  y = mul(x, 2.0)\n  return y\n}\n"
    out = ranks("start", "thread 9", "n", "p ranks(y[0])", "thread apply", "thread apply 5 p y",
                "thread apply all n", "c", text=plain, count=2)  # fmt: skip
    assert "ranks(y[0]) = [0.0, 2.0]" in out
    assert "error: there is no rank 9\nhint: there are 0 to 1" in out
    assert "threads and a command are missing" in out and "there is no thread 5" in out
    assert "next is not for threads apart" in out
    monkeypatch.setattr(sys, "stdin", io.StringIO("rank 1\ncompare\ninfo ranks\np x@1\n"))
    outcome = cli("debug", write("p.opg", plain), "-i", "ones")
    assert outcome.out.count("error: one rank is debugged") == 3
    assert "there is one rank; steps are counted from here" in outcome.out


def test_streams_of_ranks_are_threads(ranks):
    out = ranks("info threads", "start", "thread 5", "n", "info threads",
                options=("--streams", "2"))  # fmt: skip
    assert "[rank 2 stream 1]" in out and "rank 3 stream 1" in out


def test_the_file_changes(ranks, tmp_path):
    at = line_of(STEP, "w <- late")
    changed = STEP.replace("mine = add(own, f)", "mine = mul(own, f)")

    class Input(io.StringIO):
        def readline(self, *size):
            line = super().readline(*size)
            if line.startswith("EDIT"):
                (tmp_path / "step.opg").write_text(changed if "right" in line else "graph")
                line = super().readline(*size)
            return line

    original, io.StringIO = io.StringIO, Input
    try:
        out = ranks(f"b {at}", "r", "rank 2", "n", "EDIT wrong", "reload", "p ranks(total)",
                    "EDIT right", "reload", "info ranks", "c", "p ranks(total)", "p own@1", "c",
                    "run", "p total")  # fmt: skip
    finally:
        io.StringIO = original
    assert re.search(r"Kept \d+ of \d+ values", out)
    before, after = out.split("Kept")
    assert "ranks(total) = [12.0, 12.0, 12.0, 12.0]" in before
    assert after.count("main at step.opg:6") == 4
    assert "ranks(total) = [14.0, 14.0, 14.0, 14.0]" in after and "own@1 = 1.0" in after
    assert after.count("\ntotal = 14.0") == 2


def test_a_watchpoint_compares_ranks_that_have_all_done_the_op(ranks):
    spoilt = STEP.replace("  w <- late", "  odd = equal(r, 2)\n  few = cast(odd, dtype=f32)\n"
                          "  worse = add(late, few)\n  w <- worse")  # fmt: skip
    for text, stops in ((STEP, False), (spoilt, True)):
        out = ranks("watch not replicated(w)", "r", "compare w", text=text,
                    options=("--steps", "2"))  # fmt: skip
        assert ("Watchpoint 1 on ranks 0-3" in out) == stops
        assert (
            "w differs on rank 2 from element [0, 0]: 13.0, on ranks 0, 1, 3 12.0" in out
        ) == stops
        assert ("The run has ended" in out) != stops


SHARDED = """\
mesh data: 2, model: 2

param w: f32[4, 2] over model = normal(std=0.1)
param v: f32[2, 4] over model axis 1 = ones()

graph main(x: f32[3, 2]) -> f32[3, 4] {
  y = linear(x, w)
  z = all_gather(y, axis=1, over=model)
  n = add(w, 1.0)
  w <- n
  return z
}
"""


def test_a_name_is_the_whole_of_what_ranks_have_parts_of(cli, write, monkeypatch):
    file = write("step.opg", SHARDED)
    whole = opstep.loads(SHARDED).params["w"]

    def debug(*commands):
        monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(commands) + "\n"))
        outcome = cli("debug", file, "-i", "ones", "--ranks", 4, "--steps", 2)
        assert outcome.code == 0, outcome.err
        assert "internal error" not in outcome.out
        return outcome.out

    out = debug("start", "rank 1", "whatis w", "whatis shard(w)", "p same(w, joined(w))",
                "p same(w[2:], w@3)", "p same(w[:2], w@2) and same(shard(w), w@1)",
                "p same(v[:, 1:3], joined(v, axis=1, over=\"model\")[:, 1:3])",
                "p w[-1, 0] - joined(w)[3, 0]", "p same(w[::-2, 1], joined(w)[::-2, 1])",
                "p w[4]", "p stats(w).count", "p stats(w).mean - mean(joined(w))",
                "info params w", "p shape(ranks(w))", "p/e w")  # fmt: skip
    assert "type = f32[4, 2] over model\n" in out and "type = f32[2, 2]\n" in out
    assert out.count(" = true") == 5
    assert "w[-1, 0] - joined(w)[3, 0] = 0.0" in out
    assert "index 4 is out of range: axis 0 has 4" in out
    assert "stats(w).count = 8" in out and "shape(ranks(w)) = [4, 2, 2]" in out
    mean = float(re.search(r"mean\(joined\(w\)\) = (\S+)", out)[1])  # pyright: ignore
    assert abs(mean) < 1e-9
    shown = re.search(r"\nw = (.*)  \(over model\)", out)
    assert shown and np.array_equal(np.array(eval(shown[1]), "f4"), whole)

    at = line_of(SHARDED, "w <- n")
    out = debug(f"b {at}", "r", "set w[1:3, 0] = [7, 8]", "p w[:, 0]", "p ranks(w)[:, :, 0]", "n",
                "p was(w)[1:3, 0]", "rank 2", "set scheduler-locking on", "rn", "p w",
                "p shard(w)[0]", "info params w", "p w@3", "n", "p max(w) > 0")  # fmt: skip
    assert re.search(r"ranks\(w\)\[:, :, 0\] =\s+\[\[\s*\S+\s+7\. *\]\s+\[\s*8\.", out)
    assert out.count("7.0, 8.0") >= 2  # those of the group of the rank alone
    assert "ranks are between different updates of w" not in out.split("rank 2")[0]
    apart = out.split("scheduler-locking on")[1]
    assert "error: ranks are between different updates of w" in apart
    assert "hint: shard(w) is what rank 2 has of it, w@3 is rank 3's" in apart
    assert "(on rank 2)" in apart and "w@3 = " in apart
    assert "max(w) > 0 = true" in apart


def test_conditions_are_about_the_whole(cli, write, monkeypatch):
    at = line_of(SHARDED, "w <- n")
    commands = (f"b {at} if max(w) > 1", "watch min(w) > 0.5", "r", "c", "p w[0, 0] > 0.5", "c")
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(commands) + "\n"))
    file = write("step.opg", SHARDED)
    outcome = cli("debug", file, "-i", "ones", "--ranks", 4, "--steps", 2)
    assert outcome.code == 0 and "different updates" not in outcome.out
    first, second = outcome.out.split("w[0, 0] > 0.5")[0].split("Watchpoint 2 on ranks 0-3")
    assert "Breakpoint 1 on" not in first and "main [step=1]" not in first
    assert "Breakpoint 1 on ranks 0-3" in second and "main [step=1]" in second
