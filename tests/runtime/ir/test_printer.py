"""The printer: what it writes reads back as the same, and its form is canonical."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from modules import modules, values

from opstep.runtime.ir.graph import Attr, Literal, Name, same_value
from opstep.runtime.ir.parser import parse
from opstep.runtime.ir.printer import print_graph, print_module, print_statement, print_value

HERE = Path(__file__).parent


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(modules())
def test_what_is_printed_reads_back_the_same(module) -> None:
    text = print_module(module)
    again = parse(text)
    assert again == module
    assert print_module(again) == text


@settings(max_examples=300, deadline=None)
@given(values)
def test_values_read_back_exactly(value) -> None:
    text = print_value(value)
    module = parse(f"graph g() {{\n  y = f(k={text})\n}}\n")
    (statement,) = module.graphs["g"].body
    assert same_value(statement.attrs[0].value, value)


@settings(max_examples=300, deadline=None)
@given(st.floats())
def test_floats_read_back_exactly(value: float) -> None:
    module = parse(f"graph g() {{\n  y = f({print_value(value)})\n}}\n")
    (statement,) = module.graphs["g"].body
    assert statement.operands == (Literal(value),)


MESSY = """

#!/usr/bin/env opstep
#no space
##  two signs
#
   #   indented



param   w :f32[ 6,1 ]=normal( std = .2 ,)# behind
state s:i32[]=  -3


# above the graph

graph g ( x:f32[N*2+N] , # inside, first
  #
          y : f32[ (H-1)//2 + 1 ] ,
  # inside, second
        )->f32[ ],i32[]{# at the brace


    # above a
  a=add(x,y) at   "a\\u0041b\\"":12 # behind a


  b , c : f32[N]=split( a,
     2 , # two
     axis=- 1, k = [ 1,
        2.50, ] )
  tick(1e3)
  assert   b ,"a message"
  s<-4
  return a ,b at "f":1,"g" : 2   in "m"

    # at the end

}  # behind the brace
graph h(){}
param late: bool[]=true



# last

"""

TIDY = """\
#!/usr/bin/env opstep
# no space
##  two signs
#
#   indented

param w: f32[6, 1] = normal(std=0.2)  # behind
state s: i32[] = -3

# above the graph

# inside, first
#
# inside, second
graph g(x: f32[N*3], y: f32[(H + 1)//2]) -> f32[], i32[] {  # at the brace
  # above a
  a = add(x, y) at "aAb\\"":12  # behind a

  # two
  b, c: f32[N] = split(a, 2, axis=-1, k=[1, 2.5])
  tick(1000.0)
  assert b, "a message"
  s <- 4
  return a, b at "f":1, "g":2 in "m"

  # at the end
}  # behind the brace

graph h() {
}

param late: bool[] = true

# last
"""


def test_the_form_is_canonical_and_keeps_every_comment() -> None:
    assert parse(MESSY) == parse(TIDY)  # spans are not compared
    assert print_module(parse(MESSY)) == TIDY
    assert print_module(parse(TIDY)) == TIDY


def test_names_stand_in_backquotes_where_they_need_them() -> None:
    text = """\
param {}: f32[4]

graph g(x: f32[4]) -> f32[4] {{
  y = add(x, {}, {})
  {} <- {}
  assert {}
  return {}
}}
"""
    for name in (
        "0.weight",
        "layers.0-1.w",
        "naïve.b",
        "return",
        "inf",
        "a b",
        '"',
        "# no",
        "a..b",
    ):
        quoted = text.format(*[f"`{name}`"] * 7)
        module = parse(quoted)
        assert list(module.tensors) == [name]
        assert print_module(module) == quoted
    for name in ("w", "layers.0.w", "relu", "in", "f32"):
        plain = text.format(*[name] * 7)
        assert parse(text.format(*[f"`{name}`"] * 7)) == parse(plain)
        assert print_module(parse(plain)) == plain


def test_windows_line_ends_become_plain_ones() -> None:
    text = MESSY.replace("\n", "\r\n")
    assert print_module(parse(text)) == TIDY


def test_a_missing_last_line_end_is_added() -> None:
    assert print_module(parse("graph g() {}")) == "graph g() {\n}\n"
    assert print_module(parse("param w: f32[1]  # last")) == "param w: f32[1]  # last\n"
    assert print_module(parse("# only a comment")) == "# only a comment\n"
    assert print_module(parse("")) == ""
    assert print_module(parse("\n\n \n")) == ""


LONG = """\
graph long_signature(
    first_input: f32[N, 1, 28, 28], second_input: f32[N, 1, 28, 28], third_input: f32[N, 1, 28, 28],
    labels: i32[N],
) -> f32[] {  # behind
  y = some_op_with_a_long_name(
      first_input, second_input, third_input, labels, first_input, second_input, third_input,
      first_attribute=[1, 2, 3], second_attribute="a text", third_attribute=0.001,
  ) at "model.py":1200, "train.py":3 in "encoder.0"  # behind
  return y
}
"""


def test_long_lines_are_broken_in_their_parentheses() -> None:
    assert print_module(parse(LONG)) == LONG
    one_line = LONG.replace("\n    ", " ").replace("\n  )", ")").replace("\n)", ")")
    assert max(map(len, one_line.split("\n"))) > 150
    assert print_module(parse(one_line)) == LONG
    assert max(map(len, LONG.split("\n"))) <= 100


@pytest.mark.parametrize("path", sorted((HERE / "errors").glob("[!s]*.opg")), ids=str)
def test_programs_keep_every_comment(path: Path) -> None:
    text = path.read_text()
    printed = print_module(parse(text))
    assert printed.count("#") == text.count("#")
    assert parse(printed) == parse(text)
    assert print_module(parse(printed)) == printed


def test_parts_of_a_module_are_printed_alone() -> None:
    module = parse("graph g(x: f32[N]) {\n  y = relu(x, k=[N])  # behind\n}\n")
    graph = module.graphs["g"]
    assert print_statement(graph.body[0]) == "y = relu(x, k=[N])"
    assert print_graph(graph) == "graph g(x: f32[N]) {\n  y = relu(x, k=[N])  # behind\n}\n"


def test_values_that_look_alike_are_not_equal() -> None:
    assert Literal(1) != Literal(1.0)
    assert Literal(0.0) != Literal(-0.0)
    assert Literal(float("nan")) == Literal(float("nan"))
    assert Attr(Name("k"), (1, True)) != Attr(Name("k"), (1, 1))
    assert len({Literal(float("nan")), Literal(float("nan")), Literal(2)}) == 2
