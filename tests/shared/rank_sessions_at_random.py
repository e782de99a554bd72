"""Random sessions on several ranks, and runs with the same changes that only go forward."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np

import opstep
from opstep.api.rank_debugging import debug_ranks
from opstep.runtime.debugger.debugger import Debugger
from opstep.runtime.debugger.ranks.lockstep import RankDebugger

STEPS = 2
POLICIES: list[dict[str, Any]] = [
    {}, {"alloc": "reuse"}, {"mode": "async"}, {"mode": "async", "streams": 2, "alloc": "fresh"},
    {"memory_budget": 2000},
]  # fmt: skip
LOOP = """
graph near(x: f32[4], n: i32[]) -> bool[] {
  low = min(x)
  all = all_reduce(low, reduction="min")
  far = less(all, 1.0)
  few = less(n, 3)
  goes = logical_and(far, few)
  return goes
}

graph turn(x: f32[4], n: i32[]) -> f32[4], i32[] {
  s = all_reduce(x, over=data, reduction="mean")
  y = add(s, 0.25)
  k = add(n, 1)
  return y, k
}

graph both(x: f32[4]) -> f32[4] {
  wide = all_gather(x, over=model)
  y = reduce_scatter(wide, over=model, reduction="max")
  return y
}
"""


def program_of(chance: Random) -> str:
    """A graph with collectives along both axes, in a loop and in a branch by the rank."""
    names, lines = ["x", "w"], []
    forms = [
        "add({a}, {b})", "tanh({a})", "mul({a}, 0.5)", "all_reduce({a})",
        "all_reduce({a}, over=data)", "all_reduce({a}, over=model, reduction=\"max\")",
        "broadcast_from({a}, root=1, over=data)", "all_to_all({a}, over=model)", "both({a})",
        "barrier({a})",
    ]  # fmt: skip
    for k in range(chance.randint(8, 14)):
        a, b = chance.choice(names), chance.choice(names[-3:])
        lines.append(f"  v{k} = {chance.choice(forms).format(a=a, b=b)}")
        names.append(f"v{k}")
    where = chance.randrange(len(lines))
    lines.insert(where, f"  looped, n = while({names[2 + where] if where else 'x'}, 0, test=near, "
                        "body=turn, limit=9)" if where else "  r = rank()")  # fmt: skip
    last = names[-1]
    return (
        "mesh data: 2, model: 2\nparam w: f32[4] = normal()\n"
        "graph main(x: f32[4]) -> f32[4] {\n" + "\n".join(lines) + f"\n  new = add(w, {last})\n"
        f"  small = tanh(new)\n  w <- small\n  return {last}\n}}\n{LOOP}"
    ).replace(f"while({names[2 + where]},", f"while({names[1 + where]},")


def begun(text: str, **options: Any) -> RankDebugger:
    inputs = [{"x": np.linspace(-1, 1, 4, dtype="f4") * (r + 1)} for r in range(4)]
    program = opstep.loads(text, ranks=4)
    debugger = debug_ranks(program, "main", inputs, steps=STEPS, stop_on_entry=True, **options)
    debugger.start()
    return debugger


Changes = dict[tuple[int, int, str], np.ndarray]  # of a rank, in a step, of a value


def changed(debugger: RankDebugger, chance: Random, changes: Changes) -> None:
    """Sets a value of main on one of the ranks."""
    member = chance.choice(debugger.group.members)
    stack = Debugger.stack(member)
    frame = stack[-1]
    names = [n for n in frame.names() if n[0] == "v"]
    if not names:
        return
    name = chance.choice(names)
    array = np.array([chance.uniform(-2, 2) for _ in range(4)], "f4")
    debugger.set(frame, name, array)
    for also in [name, *frame.namesakes(name)]:
        changes.pop((member.rank, frame.activation.turn, also), None)
    changes[member.rank, frame.activation.turn, name] = array


def session(text: str, seed: int, options: dict[str, Any]) -> tuple[RankDebugger, Changes]:
    chance, changes = Random(seed), {}
    debugger = begun(text, **options)
    group = debugger.group
    for _ in range(40):
        command = chance.choice(["over", "in", "out", "back", "back_in", "over", "in"])
        group.alone = chance.random() < 0.4
        member = chance.choice(group.members)
        what = chance.random()
        if what < 0.15:
            changed(debugger, chance, changes)
        elif what < 0.2:
            member.go(chance.choice(["continue", "reverse_continue"]))
        else:
            for _ in range(chance.randint(1, 4)):
                member.go(command, group.thread(member.rank))
    group.alone = False
    return debugger, changes


def at_end(debugger: RankDebugger) -> list[dict[str, bytes]]:
    """What each rank has at the end: its results, its param, all values of the last step."""
    for _ in range(20):
        stop = debugger.go("continue")
        if stop.reason == "end":
            break
    assert stop.reason == "end", stop
    found = []
    for member in debugger.group.members:
        frame = Debugger.stack(member)[-1]
        values = {**frame.names(), **frame.params()}
        executor = member.machine.executor
        found.append({n: executor.array(node).tobytes() for n, node in values.items()})
        found[-1] |= {f"result {n}": a.tobytes() for n, a in member.result().items()}
    return found


def fresh(text: str, changes: Changes, **options: Any) -> RankDebugger:
    """A run that goes forward, and makes each change once its value is there."""
    debugger, left = begun(text, **options), dict(changes)
    while debugger.go("in").reason != "end":
        for (rank, turn, name), array in list(left.items()):
            frame = Debugger.stack(debugger.group.members[rank])[-1]
            if frame.activation.turn == turn and frame.lookup(name) is not None:
                debugger.set(frame, name, array)
                del left[rank, turn, name]
    assert not left
    return debugger
