"""Commands for programs of many ranks, none of which runs: what is checked, and what is told."""

from __future__ import annotations

import json

PROGRAM = """mesh data: 4, model: 2

graph main(x: f32[N, 8]) -> f32[N, 8] {
  r = rank(over=model)
  first = equal(r, 0)
  y = cond(first, x, then=one, else=other)
  return y
}

graph one(x: f32[N, 8]) -> f32[N, 8] {
  y = all_reduce(x)
  return y
}

graph other(x: f32[N, 8]) -> f32[N, 8] {
  y = all_reduce(x, reduction="max")
  return y
}
"""
SPLIT = """mesh data: 4

graph main(x: f32[8]) -> f32[2] {
  y = reduce_scatter(x)
  return y
}
"""


def test_plan_says_whether_ranks_match(cli, write):
    file = write("ranks.opg", PROGRAM)
    ended = cli("plan", file, "-s", "N=2", "--ranks", 8, "--summary")
    assert ended.code == 1
    assert "ranks.opg:11:7: error: rank 0 is at all_reduce of f32[2, 8], but" in ended.err
    assert "ranks.opg:16:7: note: rank 1 is here" in ended.err
    assert ended.out.splitlines()[-1] == "8 ranks (data: 4, model: 2): 1 fault"
    told = json.loads(cli("plan", file, "-s", "N=2", "--ranks", 8, "--json").out)
    assert (told["ranks"], [d["line"] for d in told["mismatches"]]) == (8, [11])
    sound = write("sound.opg", PROGRAM.replace(', reduction="max"', ""))
    ended = cli("plan", sound, "-s", "N=2", "--mesh", "data=512", "--summary")
    assert ended.code == 0
    assert ended.out.splitlines()[-1] == "1,024 ranks (data: 512, model: 2): they match"
    assert "rank" not in cli("plan", sound, "-s", "N=2", "--summary").out  # there is one


def test_ranks_that_the_mesh_is_not_for(cli, write):
    file = write("ranks.opg", PROGRAM)
    ended = cli("plan", file, "-s", "N=2", "--ranks", 6)
    assert ended.code == 2
    assert "the mesh (data: 4, model: 2) is of 8 ranks, not 6" in ended.err
    assert "--mesh data=6 --mesh model=1 gives it other extents" in ended.err
    ended = cli("check", file, "--mesh", "modle=3")
    assert ended.code == 2
    assert "the mesh has no axis modle\nhint: did you mean model?" in ended.err
    assert "mesh=3 is not" in cli("check", file, "--mesh", "mesh=3 is not").err


def test_check_is_for_the_mesh_that_is_declared(cli, write):
    file = write("split.opg", SPLIT)
    assert cli("check", file).code == 0
    ended = cli("check", file, "--mesh", "data=3")
    assert ended.code == 1
    assert "split.opg:4:22: error: on the mesh data: 3: the 8 of axis 0" in ended.err
    ended = cli("run", file, "-i", "ones")  # as one rank
    assert ended.code == 1
    assert "on the mesh data: 1: graph main returns f32[2], but y is f32[8]" in ended.err
    assert "--ranks 4 has the mesh data: 4" in ended.err
