"""Where dims come from: each formula is worked out again, for every op that the tests have."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cases import graph_files

from opstep.kernels.stdlib import library
from opstep.lsp.derivation import Step, Watched, derive
from opstep.runtime.ir.dims import evaluate, symbol
from opstep.runtime.ir.parser import load, parse
from opstep.runtime.ir.verified import Application
from opstep.runtime.ir.verify import verify_with_diagnostics

OPS = graph_files()
# Whose rules ask whether a dim is a number, or build a shape from what is no dim, in some programs.
SOMETIMES_SILENT = {
    "avg_pool2d", "avg_pool3d", "diagonal", "diagonal_scatter", "gather_elements",
    "gather_elements_grad", "gather_nd", "max_pool2d", "max_pool2d_grad",
    "max_pool2d_with_indices", "scatter", "scatter_add", "scatter_nd", "scatter_nd_add",
    "scaled_dot_product_attention", "scaled_dot_product_attention_grad", "scatter_reduce",
    "slice", "slice_scatter",
}  # fmt: skip


def applications(text_or_path: str | Path) -> list[Application]:
    module = load(text_or_path) if isinstance(text_or_path, Path) else parse(text_or_path)
    verified, _ = verify_with_diagnostics(module, library=library())
    return [a for g in verified.graphs.values() for a in g.applications if a and a.op]


def worked_out(step: Step) -> object:
    """The value of a formula's numbers, by the rules of dims."""
    symbols = {name: symbol(name) for name in re.findall(r"[A-Za-z_]\w*", step.numbers)}
    return eval(step.numbers, {"__builtins__": {}}, symbols)


@pytest.mark.parametrize("path", OPS, ids=lambda p: p.stem)
def test_numbers_come_to_the_dim(path):
    silent = 0
    for application in applications(path):
        steps = derive(application)
        wanted = [d for t in application.resolved.results for d in t.shape]
        if not steps:
            silent += bool(wanted) and not application.op.traits.host
            continue
        assert [s.value for s in steps] == wanted
        for step in steps:
            assert worked_out(step) == step.value
    assert not silent or path.stem in SOMETIMES_SILENT


def test_formulas_name_what_they_are_made_of():
    (conv,) = applications("""
graph f(x: f32[N, 3, 9, H], w: f32[4, 3, 3, 5]) -> f32[N, 4, 4, (H - 3)//2 + 1] {
  y = conv2d(x, w, stride=[2, 2], padding=[0, 1])
  return y
}
""")
    steps = derive(conv)
    assert [s.axis for s in steps] == [0, 1, 2, 3]
    assert steps[2].formula == (
        "(H + padding[0] + padding[0] - (dilation[0]*(R - 1) + 1))//stride[0] + 1"
    ).replace("H", "x.shape[2]")  # H is a symbol of the graph, and another axis
    assert steps[2].numbers == "(9 + 0 + 0 - (1*(3 - 1) + 1))//2 + 1"
    assert steps[3].numbers == "(H + 1 + 1 - (1*(5 - 1) + 1))//2 + 1"


def test_calls_have_the_dims_of_the_callee_s_head():
    verified, _ = verify_with_diagnostics(
        parse("""
graph twice(x: f32[N, K]) -> f32[N*2, K], f32[N - 1] {
  y = concat(x, x)
  z = slice(x, starts=[0, 0], ends=[1, 1])
  return y, z
}
graph main(x: f32[M - 3, 8]) -> f32[M] {
  a, b = twice(x)
  return x
}
graph numbers(x: f32[5, 8]) -> f32[M] {
  a, b = twice(x)
  return x
}
"""),
        library=library(),
    )
    (call,) = [a for a in verified.graphs["main"].applications if a]
    assert [(s.result, s.axis, s.formula, s.numbers, str(s.value)) for s in derive(call)] == [
        (0, 0, "N*2", "(M - 3)*2", "M*2 - 6"),
        (0, 1, "K", "8", "8"),
        (1, 0, "N - 1", "(M - 3) - 1", "M - 4"),
    ]
    (call,) = [a for a in verified.graphs["numbers"].applications if a]
    assert [(s.numbers, s.value) for s in derive(call)] == [("5*2", 10), ("8", 8), ("5 - 1", 4)]


def test_a_rule_that_looks_too_closely_is_not_explained():
    found = applications("""
graph f(x: f32[4, 9]) -> f32[4, 9] {
  y = relu(x)
  return y
}
""")[0]
    wrong = found._replace(
        resolved=found.resolved._replace(results=(found.resolved.operands[0],) * 2)
    )
    assert derive(wrong) == []  # what the rule gives is not what is known


def test_watched_dims_are_never_kept_by_a_cache():
    with pytest.raises(TypeError):
        hash(Watched(3, "n"))


@pytest.mark.parametrize(
    ("made", "formula"),
    [
        (lambda a, b: a + 0, "a"),
        (lambda a, b: 1 * a, "a"),
        (lambda a, b: (a + b) * 2, "(a + b)*2"),
        (lambda a, b: a - (b - 1), "a - (b - 1)"),
        (lambda a, b: a * (b // 2), "a*(b//2)"),
        (lambda a, b: -a % b, "(-a)%b"),
        (lambda a, b: a + -3, "a - 3"),
        (lambda a, b: 5 - a, "5 - a"),
    ],
)
def test_formulas_are_read_as_they_are_worked_out(made, formula):
    result = made(Watched(7, "a"), Watched(4, "b"))
    assert result.formula == formula
    assert eval(formula, {}, {"a": 7, "b": 4}) == result.value
    assert eval(result.numbers) == result.value


def test_symbols_are_kept_in_the_numbers():
    n = symbol("N")
    result = (Watched(n, "x.shape[0]") + 2) // Watched(2, "stride[0]")
    assert result.numbers == "(N + 2)//2"
    assert evaluate(result.value, {"N": 8}) == 5
