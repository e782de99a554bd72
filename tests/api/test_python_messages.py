"""What Python says to its user: errors of arguments, and how things show themselves."""

from __future__ import annotations

import re

import numpy as np
import pytest

import opstep
from opstep.runtime.ir.errors import InputError

TEXT = """
param w: f32[3]
param v: f32[3] = ones()

graph loss(
    first_of_the_inputs: f32[N, 3], second_of_the_inputs: f32[N, 3], label: i32[N],
) -> f32[] {
  # weighted
  x = mul(first_of_the_inputs, w)
  y = mul(second_of_the_inputs, v)
  z = add(x, y)
  loss_of_all = softmax_cross_entropy(
      z, label, axis=1, reduction="mean", ignore_index=-100000000000000000,
  )
  least = min(loss_of_all)
  return least
}
"""


def program() -> opstep.Program:
    return opstep.loads(TEXT, "loss.opg")


@pytest.mark.parametrize(
    ("graph", "wrt", "message"),
    [
        ("los", ["w"], "there is no graph los\nhint: did you mean loss?"),
        ("loss", "w", "wrt is the string 'w'\nhint: it is a list: ['w']"),
        ("loss", ["lable"], "an input of loss nor a param or state\nhint: did you"),
        ("loss", ["label"], "label is i32[N]: only floats have derivatives"),
    ],
)
def test_gradients_of_what_is_not_there(graph, wrt, message):
    with pytest.raises(InputError, match=re.escape(message)):
        program().with_grad(graph, wrt)


def test_a_gradient_needs_a_name_of_its_own():
    once = program().with_grad("loss", ["w"])
    with pytest.raises(InputError, match="there is a graph loss_grad already"):
        once.with_grad("loss", ["v"])
    assert list(once.with_grad("loss", ["v"], name="by_v").graphs) == ["loss", "loss_grad", "by_v"]


def test_a_gradient_can_be_made_before_params_are_loaded():
    plain = program()
    plain.params["v"] = [1, 2, 3]
    made = plain.with_grad("loss", ["w"])
    assert made.params["v"].tolist() == [1, 2, 3]
    with pytest.raises(InputError, match=r"load it: params\['w'\] = array, or give it"):
        made.params["w"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"inputs": [1, 2]}, "inputs are given as a list; they are arrays by name"),
        ({"threads": 0}, "threads is 0; it can be 1 to 256"),
        ({"steps": 0}, "steps is 0; it can be 1 or more"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(InputError, match=re.escape(message)):
        program().run("loss", **arguments)


def test_a_size_that_is_missing():
    with pytest.raises(InputError, match=re.escape("add symbols={'N': 8}")):
        program().plan("loss")


def test_how_tensors_and_plans_show_themselves():
    plain = program()
    assert repr(plain.params) == "<Tensors w: f32[3], v: f32[3]>"
    with pytest.raises(InputError, match="no param or state nothing\nhint: there are: w, v"):
        plain.params["nothing"]
    plain.params["w"] = np.ones(3, np.float32)
    assert str(plain.plan("loss", symbols={"N": 4})).startswith("plan     loss\nsource")


def test_types_stand_beside_the_lines_they_belong_to():
    """The signature and the last statement are broken over several lines."""
    page = program()["loss"]._repr_html_()
    rows = re.findall(r"<tr><td[^>]*>(.*?)</td><td[^>]*>(.*?)</td></tr>", page)
    assert any(line.startswith("    first_of_the_inputs") for line, _ in rows)
    beside = {line.split()[0]: note for line, note in rows if note}
    assert beside == {
        "x": "f32[N, 3]",
        "y": "f32[N, 3]",
        "z": "f32[N, 3]",
        "loss_of_all": "f32[]",
        "least": "f32[]",
    }


def test_derivatives_by_patterns_but_what_is_frozen():
    made = program().with_grad("loss", ["*", "first_of_the_inputs"], freeze=["v"])
    returned = [name.text for name in made.graphs["loss_grad"].body[-1].values]
    assert returned == ["least", "d_w", "d_first_of_the_inputs"]


@pytest.mark.parametrize(
    ("wrt", "freeze", "message"),
    [
        (["*"], "v", "freeze is the string 'v'\nhint: it is a list: ['v']"),
        (["x*"], [], "no param of floats is called x*\nhint: there are: w, v"),
        (["w"], ["w*"], "all that derivatives are by is frozen"),
        (["w"], ["vv"], "hint: did you mean v?"),
    ],
)
def test_patterns_that_leave_nothing(wrt, freeze, message):
    with pytest.raises(InputError, match=re.escape(message)):
        program().with_grad("loss", wrt, freeze=freeze)
