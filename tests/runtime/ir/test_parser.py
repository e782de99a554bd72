"""The parser: what a text means, where it stands, and what is left of a text with errors."""

from __future__ import annotations

import gc
import math
import time
from pathlib import Path

import pytest
from programs import chain

from opstep.runtime.ir.diagnostics import OpstepError
from opstep.runtime.ir.dims import Expr, symbol
from opstep.runtime.ir.errors import InputError
from opstep.runtime.ir.graph import (
    Apply,
    Assert,
    Literal,
    Name,
    Provenance,
    Return,
    SourceLine,
    Update,
)
from opstep.runtime.ir.op import Ref
from opstep.runtime.ir.parser import load, parse, parse_with_diagnostics
from opstep.runtime.ir.printer import print_statement
from opstep.runtime.ir.reading import read_source
from opstep.runtime.ir.types import TensorType, f32, i32

PROGRAM = """\
param conv1.w: f32[6, 1, 3, 3] = normal(std=0.2)
state step: i32[] = 0
state loaded.0.bias: f32[6]

graph features(x: f32[N, 1, 2*H], label: i32[N]) -> f32[N], i32[] {
  c = conv2d(x, conv1.w, padding=[1, 1]) at "model.py":12
  a, b: f32[N] = split(c, 2, pieces=2)
  notify(a)
  assert a, "message"
  conv1.w <- b
  step <- -1
  return a, step
}
"""


def body(text: str) -> tuple:
    """The statements of a graph that holds `text`."""
    module, diagnostics = parse_with_diagnostics(f"graph g() {{\n{text}\n}}\n")
    assert not diagnostics, diagnostics
    return module.graphs["g"].body


def test_declarations() -> None:
    module = parse(PROGRAM)
    w, step, bias = module.items[:3]
    assert (w.kind, w.name.text, w.type) == ("param", "conv1.w", TensorType(f32, (6, 1, 3, 3)))
    assert w.init == Name("normal")
    assert w.attrs[0].value == 0.2
    assert w.value is None
    assert (step.kind, step.init, step.value) == ("state", None, Literal(0))
    assert (bias.init, bias.value) == (None, None)
    assert list(module.tensors) == ["conv1.w", "step", "loaded.0.bias"]


def test_graphs_and_statements() -> None:
    graph = parse(PROGRAM).graphs["features"]
    N, H = symbol("N"), symbol("H")
    assert [b.type for b in graph.inputs] == [
        TensorType(f32, (N, 1, 2 * H)),
        TensorType(i32, (N,)),
    ]
    assert graph.results == (TensorType(f32, (N,)), TensorType(i32, ()))
    conv, split, notify, check, update, number, result = graph.body
    assert isinstance(conv, Apply)
    assert conv.operands == (Name("x"), Name("conv1.w"))
    assert conv.at == Provenance((SourceLine("model.py", 12),))
    assert conv.attrs[0].value == (1, 1)
    assert [b.type for b in split.results] == [None, TensorType(f32, (N,))]
    assert split.operands == (Name("c"), Literal(2))
    assert notify.results == ()
    assert check == Assert(Name("a"), "message")
    assert update == Update(Name("conv1.w"), Name("b"))
    assert number == Update(Name("step"), Literal(-1))
    assert result == Return((Name("a"), Name("step")))


def test_origins_hold_the_stack_of_lines_and_the_module() -> None:
    text = """
      y = relu(x) at "model.py":33, "train.py":10 in "encoder.0.act"
      in <- y at "model.py":34 in "encoder"
      assert in, "in" at "a":1 , "b":2,"c":3
      return in at "a":1  # in"""
    apply, update, check, result = body(text)
    assert apply.at is not None and (apply.at.file, apply.at.line) == ("model.py", 33)
    frames = (SourceLine("model.py", 33), SourceLine("train.py", 10))
    assert apply.at == Provenance(frames, "encoder.0.act") != Provenance(frames)
    assert update.at == Provenance((SourceLine("model.py", 34),), "encoder")
    assert [line for _, line in check.at.frames] == [1, 2, 3]
    assert result.at == Provenance((SourceLine("a", 1),))
    short = 'y = relu(x) at "model.py":33 in "encoder.0.act"'
    assert print_statement(apply) == short


def test_every_span_shows_the_text_it_stands_for() -> None:
    text = PROGRAM.replace("at ", "at  ", 1)
    module, _ = parse_with_diagnostics(text)
    found = []

    def look(node) -> None:
        if isinstance(node, Name):
            assert text[slice(*node.span)] == node.text
            found.append(node.text)
        elif isinstance(node, Literal):
            assert float(text[slice(*node.span)]) == node.value
        elif isinstance(node, tuple):
            for part in node:
                look(part)
        elif hasattr(node, "__dataclass_fields__"):
            for field in node.__dataclass_fields__:
                look(getattr(node, field))

    look(module.items)
    assert len(found) == 26
    graph = module.graphs["features"]
    assert text[slice(*graph.span)] == text[text.index("graph") :].rstrip()
    assert text[slice(*graph.results_span)] == "f32[N], i32[]"
    assert text[slice(*graph.inputs[0].type_span)] == "f32[N, 1, 2*H]"
    assert text[slice(*graph.body[0].span)].endswith('"model.py":12')
    assert text[slice(*graph.body[0].attrs[0].span)] == "[1, 1]"
    assert text[slice(*graph.body[1].results[1].type_span)] == "f32[N]"
    assert text[slice(*graph.body[1].span)] == "a, b: f32[N] = split(c, 2, pieces=2)"
    assert text[slice(*module.tensors["conv1.w"].type_span)] == "f32[6, 1, 3, 3]"
    assert text[slice(*module.tensors["step"].span)] == "state step: i32[] = 0"


N, M = symbol("N"), symbol("M")
VALUES = {
    "1": 1,
    "-1": -1,
    "1.5": 1.5,
    ".5": 0.5,
    "2.": 2.0,
    "1e3": 1000.0,
    "-1.5E-3": -0.0015,
    "1e-400": 0.0,
    "inf": math.inf,
    "-inf": -math.inf,
    "9223372036854775807": 2**63 - 1,
    "-9223372036854775808": -(2**63),
    "true": True,
    "false": False,
    "none": None,
    '"text"': "text",
    r'"\"quoted\" \\ \n \t é"': '"quoted" \\ \n \t é',
    r'"\u00e9\u0000"': "é\0",
    '"# no comment"': "# no comment",
    "[]": (),
    "[1, 2.5, true]": (1, 2.5, True),
    "[1,]": (1,),
    "relu": Ref("relu"),
    "f32": Ref("f32"),
    "[N, 8]": (Ref("N"), 8),
    "(N)": Ref("N"),
    "N*1 + 0": Ref("N"),
    "N*2": N * 2,
    "2*N": N * 2,
    "N - N": 0,
    "3*4 + 2": 14,
    "-N": -N,
    "--N": Ref("N"),
    "-(N - 1)": 1 - N,
    "-7//2": -4,
    "7 % 4": 3,
    "(2*N + 4)//2": N + 2,
    "(N + 1)//2*2": (N + 1) // 2 * 2,
    "N % M": N % M,
    "N//(M + 1)": N // (M + 1),
    "[N//2,\n   M]": (N // 2, Ref("M")),
}


@pytest.mark.parametrize("text", VALUES)
def test_attribute_values(text: str) -> None:
    (statement,) = body(f"y = f(k={text})")
    value = statement.attrs[0].value
    assert value == VALUES[text]
    assert type(value) is type(VALUES[text])


def test_nan_as_operand_and_attribute() -> None:
    (statement,) = body("y = f(nan, -nan, k=nan)")
    assert all(math.isnan(o.value) for o in statement.operands)
    assert math.isnan(statement.attrs[0].value)


def test_number_operands() -> None:
    (statement,) = body("y = f(1, -2, 0.5, -inf, 1e-3)")
    assert [o.value for o in statement.operands] == [1, -2, 0.5, -math.inf, 0.001]
    assert [type(o.value) for o in statement.operands[:3]] == [int, int, float]


@pytest.mark.parametrize(
    "text",
    [
        "y=f(x,1,k=2)",
        "y  =  f ( x , 1 , k = 2 )",
        "y = f(x, 1, k=2,)",
        "y = f(\n  x,\n\n  1, # one\n  k\n  =\n  2\n)",
        "\ty\t=\tf(x,\t1,\tk=2)\r",
    ],
)
def test_blanks_do_not_matter(text: str) -> None:
    (statement,) = body(text)
    (plain,) = body("y = f(x, 1, k=2)")
    assert (statement.operands, statement.attrs) == (plain.operands, plain.attrs)


def test_a_name_of_an_attribute_may_be_a_keyword() -> None:
    (statement,) = body("y = cond(p, then=a, else=b, at=1, state=true)")
    assert [a.name.text for a in statement.attrs] == ["then", "else", "at", "state"]


def test_a_graph_on_one_line() -> None:
    graph = parse("graph g(x: f32[]) -> f32[] { return x }  # behind").graphs["g"]
    assert len(graph.body) == 1
    assert graph.closing.trailing == "behind"


def test_a_byte_order_mark_is_passed_over() -> None:
    assert parse("\ufeffgraph g() {\n}\n").graphs


def test_a_type_that_was_read_before_is_read_again() -> None:
    line = "y: f32[N, # rows\n 2*H] = f(x)"
    first, second = body(f"{line}\n{line}")
    assert first == second
    assert first.comments.above == second.comments.above == ("rows",)
    text = "graph g(a: f32[N], b: f32[N]) -> f32[N], f32[N {\n}\n"
    module, (problem,) = parse_with_diagnostics(text)
    inputs = module.graphs["g"].inputs
    assert [text[slice(*i.type_span)] for i in inputs] == ["f32[N]", "f32[N]"]
    assert inputs[0].type == inputs[1].type
    assert problem.span.start == text.rindex("[")
    assert len(parse_with_diagnostics(text.replace("f32", "f33"))[1]) == 1


def test_symbols_of_a_dim_are_kept_as_arithmetic() -> None:
    graph = parse("graph g(x: f32[(H - 1)//2 + 1, N*2]) {\n}").graphs["g"]
    dims = graph.inputs[0].type.shape
    assert all(isinstance(d, Expr) for d in dims)
    assert [d.symbols() for d in dims] == [{"H"}, {"N"}]


# --- broken texts ---------------------------------------------------------------------------------


def test_the_statements_around_an_error_are_kept() -> None:
    text = "graph g(x: f32[N]) {\n  a = relu(x)\n  b = relu(a a)\n  c = relu(a)\n}\n"
    module, diagnostics = parse_with_diagnostics(text)
    assert len(diagnostics) == 1
    assert [s.results[0].name.text for s in module.graphs["g"].body] == ["a", "c"]


def test_an_open_parenthesis_costs_one_statement() -> None:
    text = "graph g() {\n  a = relu(x,\n    y\n  b = relu(a)\n  return b\n}\ngraph h() {\n}\n"
    module, diagnostics = parse_with_diagnostics(text)
    assert [d.message for d in diagnostics] == ["the ( is not closed"]
    assert len(module.graphs["g"].body) == 2
    assert "h" in module.graphs


def test_a_graph_that_is_not_closed_ends_at_the_next() -> None:
    text = "graph g() {\n  a = relu(x)\n\ngraph h() {\n}\n"
    module, diagnostics = parse_with_diagnostics(text)
    assert [d.message for d in diagnostics] == ["this { is not closed"]
    assert list(module.graphs) == ["g", "h"]


def test_parse_raises_all_errors_at_once() -> None:
    with pytest.raises(OpstepError) as error:
        parse("graph g() {\n  a = \n  b = \n}\n}\n", "some.opg")
    assert len(error.value.diagnostics) == 3
    assert "some.opg:2:7: error: expected an op or a graph" in str(error.value)


def test_a_text_of_nothing_but_errors_ends() -> None:
    module, diagnostics = parse_with_diagnostics("§\n" * 5_000)
    assert len(diagnostics) == 1_001
    assert diagnostics[-1].message == "there are more than 1000 errors; the rest is not read"
    assert not module.items


LARGE = {
    "parentheses": "graph g() {\n  y = f(k=" + "(" * 100_000,
    "brackets": "graph g() {\n  y = f(" + "[" * 100_000,
    "braces": "{" * 100_000,
    "graphs": "graph g() {\n" * 20_000,
    "minus": "graph g() {\n  y = f(k=" + "-" * 100_000 + "1)\n}\n",
    "sum": "graph g() {\n  y = f(k=N" + " + N" * 100_000 + ")\n}\n",
    "product": "param w: f32[" + "*".join(f"(a{k} + b)" for k in range(2_000)) + "]\n",
    "division": "param w: f32[N" + "//3" * 50_000 + "]\n",
    "dims": "param w: f32[" + "2, " * 50_000 + "]\n",
    "one line": "graph g() {\n  y = f(" + "x, " * 300_000 + "x)\n}\n",
    "comment": "# " + "x" * 1_000_000,
    "comments": "#\n" * 200_000,
    "blank lines": "\n" * 500_000,
    "string": 'graph g() {\n  y = f(k="' + "\\\\" * 300_000 + '")\n}\n',
    "open string": 'graph g() {\n  y = f(k="' + "\\" * 300_001,
    "digits": "graph g() {\n  y = f(" + "9" * 300_000 + ")\n}\n",
    "fraction": "graph g() {\n  y = f(0." + "9" * 300_000 + ")\n}\n",
    "name": "graph " + "g" * 500_000 + "() {\n}\n",
    "dots": "param " + "a." * 200_000 + "b: f32[1]\n",
    "quotes": '"' * 300_000,
    "nul": "\0" * 100_000,
    "spaces": " " * 500_000 + "x",
    "carriage returns": "\r" * 500_000,
    "list": "graph g() {\n  y = f(k=[" + "1, " * 200_000 + "1])\n}\n",
}


@pytest.mark.parametrize("what", LARGE)
def test_large_and_deep_texts_are_read_or_refused_at_once(what: str) -> None:
    started = time.process_time()
    _, diagnostics = parse_with_diagnostics(LARGE[what])
    str(OpstepError(diagnostics))
    assert time.process_time() - started < 5  # seconds; each takes some tenths


# --- files ----------------------------------------------------------------------------------------


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.opg"
    path.write_bytes("\ufeffgraph g() {\r\n}  # ü\r\n".encode())
    module = load(path)
    assert module.graphs["g"].closing.trailing == "ü"
    assert module.source.path == str(path)


def test_files_that_cannot_be_read_say_why(tmp_path: Path) -> None:
    cases = {
        "absent.opg": (None, "there is no such file"),
        "latin.opg": (
            "graph g() {\n} # ü".encode("latin-1"),
            "is not UTF-8 text: byte 0xfc in line 2",
        ),
        "binary.opg": (b"\x7fELF\x02\x01\x01\0\0\0\0\0", "a binary file"),
        "utf16.opg": ("graph g() {}".encode("utf-16"), "a binary file"),
    }
    for name, (data, message) in cases.items():
        path = tmp_path / name
        if data is not None:
            path.write_bytes(data)
        with pytest.raises(InputError, match=message) as error:
            read_source(path)
        assert name in str(error.value)
    with pytest.raises(InputError, match="is a directory"):
        read_source(tmp_path)
    with pytest.raises(InputError, match="cannot be read"):
        read_source("a\0b")


# --- speed ----------------------------------------------------------------------------------------


def test_the_collector_runs_again_afterwards() -> None:
    for text in ("graph g() {\n}\n", "graph"):
        parse_with_diagnostics(text)
        assert gc.isenabled()
    gc.disable()
    try:
        parse_with_diagnostics("")
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.slow
def test_time_grows_with_the_number_of_statements_and_no_faster() -> None:
    def seconds(count: int) -> float:
        text = chain(count)
        best = math.inf
        for _ in range(3):
            started = time.process_time()
            parse(text)
            best = min(best, time.process_time() - started)
        return best / count

    assert seconds(32_000) < 4 * seconds(2_000)
