"""No switch changes a bit: each op in memory of its own, in its operand's memory, on many threads.

An op that takes over an operand's buffer must not take another way through its loops for it: LLVM
makes two of a loop where it cannot tell whether pointers overlap, and sums in another order then.
"""

from __future__ import annotations

import numpy as np
from cases import by_dtype, cases, inputs

from opstep.api.program import Program
from opstep.runtime.ir.parser import parse

CASES = {c.id: c for c in cases()}
WAYS = (
    {"mode": "async", "streams": 1},
    {"mode": "async", "streams": 1, "threads": 3},
    {"mode": "debug", "alloc": "reuse"},
)


def wrapped(case, dtype: str) -> Program:
    """The test graph, called on copies of its inputs: those may be taken over."""
    graph = parse(case.text(dtype)).graphs[case.graph.name.text]
    names = [b.name.text for b in graph.inputs]
    results = [f"result{k}" for k in range(len(graph.results))]
    lines = [
        case.text(dtype),
        f"graph taken({', '.join(f'{b.name.text}: {b.type}' for b in graph.inputs)})"
        f" -> {', '.join(map(str, graph.results))} {{",
        *(f"  copy_{name} = identity({name})" for name in names),
        f"  {', '.join(results)} = {case.graph.name.text}({', '.join('copy_' + n for n in names)})",
        f"  return {', '.join(results)}",
        "}",
        "",
    ]
    return Program(parse("\n".join(lines), f"{case.file}.opg"))


def pytest_generate_tests(metafunc):
    every = metafunc.config.getoption("--every-dtype", default=False)
    chosen: dict[str, list[str]] = {}
    for case_id, dtype in by_dtype(every):
        if CASES[case_id].graph.inputs:
            chosen.setdefault(case_id, []).append(dtype)
    metafunc.parametrize("case_id, dtypes", chosen.items(), ids=list(chosen))


def test_same_bits(case_id, dtypes):
    for dtype in dtypes:
        check(CASES[case_id], dtype)


def check(case, dtype: str) -> None:
    program, given = wrapped(case, dtype), inputs(case, dtype)
    apart = program.run("taken", given, mode="debug")
    for way in WAYS:
        found = program.run("taken", given, **way)
        for name in apart.names:
            same = found[name].tobytes() == apart[name].tobytes()
            told = f"{dtype}, {way}: {name}"
            assert same, f"{told} differs in {np.sum(found[name] != apart[name])} elements"
