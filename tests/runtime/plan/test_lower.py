"""Lowering: calls are inlined, symbols are bound, named tensors have versions."""

from __future__ import annotations

import pytest
from plan_programs import SIZE, verified

from opstep.runtime.ir.diagnostics import OpstepError
from opstep.runtime.ir.types import TensorType, f16, f32, i32
from opstep.runtime.plan.internal import Asserts
from opstep.runtime.plan.lower import lower

X = TensorType(f32, (SIZE,))


def flat(text: str, *types: TensorType, graph: str = "main", library=(), asserts=None):
    program = verified(text, library)
    count = len(program.graphs[graph].graph.inputs)
    return lower(program, graph, types or [X] * count, asserts=asserts)


def names(found) -> list[str]:
    return [s.op.name for s in found.steps]


def test_steps_have_concrete_types_and_complete_attributes():
    found = flat(
        "graph main(x: f32[N]) -> f32[N*2, 3] {\n"
        "  y = scaled(x)\n  z = spread(y, shape=[N*2, 3])\n  return z\n}"
    )
    first, second = found.steps
    assert first.attrs == {"by": 2.0}
    assert second.attrs == {"shape": (16, 3)}
    assert found.types[second.results[0]] == TensorType(f32, (16, 3))
    assert found.sizes[found.homes[second.results[0]]] == 16 * 3 * 4


def test_calls_are_inlined_in_frames_of_their_own():
    found = flat(
        "graph inner(a: f32[K]) -> f32[K] {\n  b = relu(a)\n  return b\n}\n"
        "graph outer(c: f32[M]) -> f32[M] {\n  d = inner(c)\n  e = inner(d)\n  return e\n}\n"
        "graph main(x: f32[N]) -> f32[N] {\n  y = outer(x)\n  return y\n}"
    )
    assert names(found) == ["relu", "relu"]
    assert [(f.graph.name.text, f.parent) for f in found.frames] == [
        ("main", -1),
        ("outer", 0),
        ("inner", 1),
        ("inner", 1),
    ]
    assert [s.frame for s in found.steps] == [2, 3]
    assert found.frames[3].statement is found.frames[1].graph.body[1]
    # one value under its name in each scope
    assert found.scopes[0]["y"] == found.scopes[1]["e"] == found.scopes[3]["b"]
    assert found.scopes[0]["x"] == found.scopes[1]["c"] == found.scopes[2]["a"]


def test_a_call_may_bind_the_same_graph_to_other_sizes():
    found = flat(
        "graph inner(a: f32[K]) -> f32[K*2] {\n  b = spread(a, shape=[K*2])\n  return b\n}\n"
        "graph main(x: f32[N]) -> f32[N*4] {\n  y = inner(x)\n  z = inner(y)\n  return z\n}"
    )
    assert [s.attrs["shape"] for s in found.steps] == [(16,), (32,)]


def test_literals_become_consts_of_the_type_they_meet():
    found = flat(
        "graph main(x: f16[N], i: i32[N]) -> f16[N], i32[N], f32[N] {\n"
        "  a = add(x, 2)\n  b = add(i, 2)\n  c = add(i, 2.5)\n  return a, b, c\n}",
        TensorType(f16, (4,)),
        TensorType(i32, (4,)),
    )
    consts = [s.operands[1] for s in found.steps]
    assert [found.types[v].dtype for v in consts] == [f16, i32, f32]
    assert [found.literals[found.homes[v]] for v in consts] == [2, 2, 2.5]
    assert [t.dtype for t in found.steps[2].operand_types] == [f32, f32]
    assert found.types[found.steps[2].operands[0]].dtype is i32  # the device casts


def test_equal_literals_share_a_const_and_zeros_of_two_signs_do_not():
    found = flat(
        "graph main(x: f32[N]) -> f32[N] {\n"
        "  a = add(x, 0.0)\n  b = add(a, -0.0)\n  c = add(b, 0.0)\n  return c\n}"
    )
    assert found.kinds.count("const") == 2
    assert found.steps[0].operands[1] == found.steps[2].operands[1]


def test_a_literal_operand_of_a_call():
    found = flat(
        "graph inner(a: f32[], x: f32[K]) -> f32[K] {\n  b = add(x, a)\n  return b\n}\n"
        "graph main(x: f32[N]) -> f32[N] {\n  y = inner(3, x)\n  return y\n}"
    )
    (step,) = found.steps
    assert found.literals[found.homes[step.operands[1]]] == 3


def test_views_share_their_operands_buffer():
    found = flat("graph main(x: f32[2, N]) -> f32[N*2] {\n  y = flat(x)\n  return y\n}",
                 TensorType(f32, (2, 4)))  # fmt: skip
    assert found.homes[found.outputs[0]] == found.homes[found.inputs[0]]
    assert names(found) == ["flat"]


def test_a_graph_may_return_inputs_tensors_and_the_same_value_twice():
    found = flat(
        f"param p: f32[{SIZE}]\n"
        f"graph main(x: f32[{SIZE}]) -> f32[{SIZE}], f32[{SIZE}], f32[{SIZE}] {{\n"
        "  return x, p, x\n}"
    )
    assert [found.kinds[found.homes[v]] for v in found.outputs] == ["input", "param", "input"]
    assert found.steps == []


# --- named tensors --------------------------------------------------------------------------------


def test_an_update_takes_effect_when_its_graph_ends():
    found = flat(
        f"param p: f32[{SIZE}]\n"
        f"graph main(x: f32[{SIZE}]) -> f32[{SIZE}] {{\n"
        "  p <- x\n  y = add(p, x)\n  return y\n}"
    )
    assert names(found) == ["add", "update"]
    add, update = found.steps
    old, new = add.operands[0], update.results[0]
    assert old != new
    assert found.homes[old] == found.homes[new]
    assert update.statement is found.frames[0].graph.body[0]


def test_after_a_call_its_updates_are_seen():
    found = flat(
        f"param p: f32[{SIZE}]\n"
        f"graph step(x: f32[{SIZE}]) {{\n  y = add(p, x)\n  p <- y\n}}\n"
        f"graph main(x: f32[{SIZE}]) -> f32[{SIZE}] {{\n"
        "  a = relu(p)\n  step(x)\n  b = add(p, a)\n  return b\n}"
    )
    assert names(found) == ["relu", "add", "update", "add"]
    assert found.steps[3].operands[0] == found.steps[2].results[0]


def test_a_value_that_is_used_after_its_tensor_was_updated_is_copied_before():
    found = flat(
        f"param p: f32[{SIZE}]\n"
        f"graph step(x: f32[{SIZE}]) -> f32[{SIZE}] {{\n  p <- x\n  return p\n}}\n"
        f"graph main(x: f32[{SIZE}]) -> f32[{SIZE}] {{\n"
        "  v = view(p)\n  old = step(x)\n  a = add(old, v)\n  b = add(a, p)\n  return b\n}"
    )
    assert names(found) == ["view", "snapshot", "snapshot", "update", "add", "add"]
    view, first, second, update, add, last = found.steps
    assert {first.operands[0], second.operands[0]} == {view.operands[0], view.results[0]}
    assert set(add.operands) == {first.results[0], second.results[0]}
    assert last.operands[1] == update.results[0]


def test_two_tensors_may_swap():
    found = flat(
        f"param a: f32[{SIZE}]\nparam b: f32[{SIZE}]\ngraph main() {{\n  a <- b\n  b <- a\n}}"
    )
    assert names(found) == ["snapshot", "update", "update"]
    copy, first, second = found.steps
    assert found.names[copy.operands[0]] == "a"
    assert found.names[first.operands[0]] == "b"
    assert second.operands[0] == copy.results[0]


def test_an_update_with_a_number():
    found = flat("state s: i32[] = 3\ngraph main() {\n  s <- 7\n}")
    (step,) = found.steps
    assert step.op.name == "update"
    assert found.literals[found.homes[step.operands[0]]] == 7


def test_asserts_write_the_status_that_updates_read():
    asserts = Asserts()
    found = flat(
        f"param p: f32[{SIZE}]\n"
        f"graph main(x: f32[{SIZE}]) {{\n"
        '  t = positive(x)\n  assert t, "first"\n  p <- x\n  assert t, "second"\n}',
        asserts=asserts,
    )
    assert names(found) == ["positive", "assert", "assert", "update"]
    _, first, second, update = found.steps
    assert second.operands[1] == first.results[0]
    assert update.operands[1] == second.results[0]
    status = found.homes[first.results[0]]
    assert found.kinds[status] == "status"
    assert found.kinds.count("status") == 1
    assert asserts.site(second.attrs["code"]).statement.message == "second"


def test_an_assert_has_one_code_in_all_plans():
    asserts = Asserts()
    text = (
        f"graph check(x: f32[{SIZE}]) {{\n"
        '  t = positive(x)\n  assert t, "once"\n}\n'
        f"graph main(x: f32[{SIZE}]) {{\n  check(x)\n  check(x)\n}}"
    )
    program = verified(text)
    for graph in ("main", "check"):
        lower(program, graph, [X], asserts=asserts)
    assert len(asserts.sites) == 1


# --- control flow ---------------------------------------------------------------------------------

BRANCHES = f"""
param read: f32[{SIZE}]
param written: f32[{SIZE}]
param other: f32[{SIZE}]
graph deep(x: f32[{SIZE}]) {{
  t = positive(x)
  assert t, "deep"
  written <- x
}}
graph then(x: f32[{SIZE}]) -> f32[{SIZE}] {{
  deep(x)
  return x
}}
graph other_case(x: f32[{SIZE}]) -> f32[{SIZE}] {{
  y = add(x, read)
  return y
}}
"""


def test_control_flow_names_what_it_may_touch():
    found = flat(
        BRANCHES + f"graph main(x: f32[{SIZE}]) -> f32[{SIZE}], f32[{SIZE}] {{\n"
        "  a = add(written, other)\n  t = positive(a)\n"
        "  y = cond(t, x, then=then, else=other_case)\n  z = add(y, written)\n  return y, z\n}"
    )
    step = next(s for s in found.steps if s.op.name == "cond")
    assert step.graphs == ("then", "other_case")
    assert sorted(found.names[v] for v in step.touched) == ["read", "status", "written"]
    assert sorted(found.names[v] for v in step.changed) == ["status", "written"]
    assert found.steps[-1].operands[1] in step.changed  # what follows reads what it left
    assert found.steps[0].operands[0] in step.touched


def test_an_operand_that_its_own_call_updates_is_copied():
    found = flat(
        BRANCHES + f"graph main(x: f32[{SIZE}]) -> f32[{SIZE}] {{\n"
        "  t = positive(x)\n  y = cond(t, written, then=then, else=other_case)\n  return y\n}"
    )
    assert names(found) == ["positive", "snapshot", "cond"]
    assert found.steps[2].operands[1] == found.steps[1].results[0]


# --- library and errors ---------------------------------------------------------------------------


def test_graphs_come_from_a_library_too():
    found = flat(
        f"graph main(x: f32[{SIZE}]) -> f32[{SIZE}] {{\n  y = twice(x)\n  return y\n}}",
        library=["graph twice(x: f32[N]) -> f32[N] {\n  y = add(x, x)\n  return y\n}"],
    )
    assert names(found) == ["add"]
    assert found.frames[1].source.path == "library0.opg"


def test_a_size_that_does_not_fit_points_at_the_operand_and_the_calls():
    text = (
        "graph inner(a: f32[K], b: f32[K//2]) -> f32[K] {\n  return a\n}\n"
        "graph middle(a: f32[K], b: f32[K//2]) -> f32[K] {\n  c = inner(a, b)\n  return c\n}\n"
        "graph main(x: f32[N], y: f32[N//2]) -> f32[N] {\n  z = middle(x, y)\n  return z\n}"
    )
    flat(text, TensorType(f32, (5,)), TensorType(f32, (2,)))
    with pytest.raises(OpstepError, match="2"):
        flat(text, TensorType(f32, (5,)), TensorType(f32, (3,)))


def test_a_negative_dim_is_an_error_with_the_line_of_the_call():
    text = (
        "graph inner(a: f32[K]) -> f32[K] {\n  b = spread(a, shape=[K - 4])\n"
        "  return a\n}\n"
        "graph main(x: f32[N]) -> f32[N] {\n  y = inner(x)\n  return y\n}"
    )
    flat(text)
    with pytest.raises(OpstepError, match=r"(?s)test.opg:2:.*negative.*test.opg:6:.*called here"):
        flat(text, TensorType(f32, (2,)))


def test_an_unknown_graph():
    with pytest.raises(OpstepError, match="no graph nowhere"):
        lower(verified("graph main() {\n}"), "nowhere", [])


def test_calls_may_be_nested_deeply():
    depth = 2_000
    text = "graph g0(x: f32[N]) -> f32[N] {\n  y = relu(x)\n  return y\n}\n"
    for k in range(1, depth):
        text += f"graph g{k}(x: f32[N]) -> f32[N] {{\n  y = g{k - 1}(x)\n  return y\n}}\n"
    found = flat(text, graph=f"g{depth - 1}")
    assert len(found.frames) == depth
    assert names(found) == ["relu"]
