"""What is asked of NVIDIA's libraries, as far as that is seen without them."""

from __future__ import annotations

import numpy as np
import pytest

from opstep.kernels.matmul.vendor import _one_stride
from opstep.runtime.device.cuda.lowering import Lowering
from opstep.runtime.device.cuda.vendor import cublas, cudnn
from opstep.runtime.device.launch import Call
from opstep.runtime.device.single import one_step
from opstep.runtime.ir.op import OPS, complete


@pytest.mark.parametrize(
    "shape, a, b, expected",
    [
        ((), (), (), (1, 0, 0)),
        ((5,), (12,), (0,), (5, 12, 0)),
        ((2, 5), (60, 12), (100, 20), (10, 12, 20)),
        ((2, 5), (60, 12), (0, 0), (10, 12, 0)),
        ((2, 5), (60, 12), (0, 20), None),  # b is the same for both rows: no one step
        ((1, 5, 1), (7, 12, 9), (0, 20, 3), (5, 12, 20)),
    ],
)
def test_axes_of_a_batch_become_one(shape, a, b, expected):
    assert _one_stride(shape, a, b) == expected


class Routine:
    """What a library would give: takes down what it is bound to."""

    name, workspace = "a routine", 100

    def bind(self, pointers, workspace):
        bound = (list(pointers), workspace)
        return lambda stream: stream.append(bound)


def ways(op: str, *arrays: np.ndarray, **attrs) -> list:
    """(name, launches) of the op through libraries."""
    operands = list(arrays)
    step, stored, results = one_step(OPS[op], operands, complete(OPS[op], attrs))
    lowering = Lowering(step, (*stored, *results))
    return [(n, made()) for n, made in OPS[op].vendor(*lowering.args(), **step.attrs)]


@pytest.fixture
def asked(monkeypatch):
    """What the libraries are asked for; each knows one way."""
    seen = []

    class Engine(Routine):
        def plan(self):
            return self

    def algorithms(product):
        seen.append(product)
        yield Routine()

    def engines(convolution):
        seen.append(convolution)
        yield Engine()

    monkeypatch.setattr(cublas, "algorithms", algorithms)
    monkeypatch.setattr(cudnn, "engines", engines)
    return seen


def zeros(*shape: int, dtype=np.float32) -> np.ndarray:
    return np.zeros(shape, dtype)


def test_a_product_of_matrices(asked):
    ((name, (call,)),) = ways("matmul", zeros(5, 3), zeros(4, 3), transpose_b=True)
    assert name == "a routine"
    assert isinstance(call, Call)
    assert [a.slot for a in call.args] == [0, 1, 2]
    assert asked == [cublas.Product("f32", 5, 4, 3, False, True, 1, (0, 0, 20), False, 64)]


def test_rows_of_many_matrices_are_one_matrix(asked):
    ways("matmul", zeros(7, 5, 3), zeros(3, 4))
    assert asked[0][1:4] == (35, 4, 3)


def test_a_batch(asked):
    ways("matmul", zeros(7, 5, 3, dtype=np.float64), zeros(7, 3, 4, dtype=np.float64))
    assert asked == [cublas.Product("f64", 5, 4, 3, False, False, 7, (15, 12, 20), False, 64)]


def test_a_bias_is_added_by_the_library_or_by_us(asked):
    (_, alone), (name, with_ours) = ways("linear", zeros(5, 3), zeros(4, 3), zeros(4))
    assert [p.bias for p in asked] == [True, False]
    assert [len(alone), len(with_ours)] == [1, 2]
    assert name == "a routine + bias"


@pytest.mark.parametrize("a, b", [
    (zeros(0, 3), zeros(3, 4)),
    (zeros(5, 0), zeros(0, 4)),
    (zeros(5, 3, dtype=np.int32), zeros(3, 4, dtype=np.int32)),
    (zeros(5, 3, dtype=np.float16), zeros(3, 4)),  # converted as they are read: ours do that
    (zeros(2, 1, 5, 3), zeros(7, 3, 4)),
])  # fmt: skip
def test_products_that_no_library_is_asked_for(asked, a, b):
    assert ways("matmul", a, b) == []
    assert asked == []


def test_a_convolution(asked):
    attrs = {"stride": (2, 1), "padding": (1, 2), "dilation": (1, 2), "groups": 2}
    ways("conv2d", zeros(2, 4, 9, 8), zeros(6, 2, 3, 3), **attrs)
    (c,) = asked
    assert (c.kind, c.dtype, c.images, c.filters) == ("forward", "f32", (2, 4, 9, 8), (6, 2, 3, 3))
    assert c.outputs == (2, 6, 5, 8)
    assert (c.before, c.after, c.stride, c.dilation) == ((1, 2), (1, 2), (2, 1), (1, 2))


def test_a_convolution_of_volumes(asked):
    attrs = {"stride": (2, 1, 1), "padding": (1, 0, 2), "dilation": (1, 1, 2)}
    ways(
        "conv3d_weight_grad", zeros(2, 6, 3, 7, 8), zeros(2, 4, 5, 9, 8), kernel=(3, 3, 3), **attrs
    )
    (c,) = asked
    assert (c.kind, c.images, c.filters) == ("filters", (2, 4, 5, 9, 8), (6, 4, 3, 3, 3))
    assert (c.before, c.stride, c.dilation) == ((1, 0, 2), (2, 1, 1), (1, 1, 2))


def test_plans_with_and_without_the_bias_take_turns(monkeypatch):
    """The best of either are tried early."""

    class Engine(Routine):
        def __init__(self, name):
            self.name = name

        def plan(self):
            return self

    def engines(convolution):
        yield from map(Engine, ("0", "1", "2") if convolution.bias else ("0", "1"))

    monkeypatch.setattr(cudnn, "engines", engines)
    found = ways("conv2d", zeros(2, 4, 9, 8), zeros(6, 4, 3, 3), zeros(6))
    names = ["cudnn 0", "cudnn 0 + bias", "cudnn 1", "cudnn 1 + bias", "cudnn 2"]
    assert [name for name, _ in found] == names
    assert [len(launches) for _, launches in found] == [1, 2, 1, 2, 1]


def test_no_library_is_asked_for_uneven_padding(asked):
    assert ways("conv2d", zeros(2, 4, 9, 8), zeros(6, 4, 3, 3), padding=(1, 0, 2, 3)) == []


def test_a_transposed_convolution_is_the_gradient_by_the_images(asked):
    found = ways("conv_transpose2d", zeros(2, 4, 5, 5), zeros(4, 3, 3, 3), zeros(3))
    (c,) = asked
    assert (c.kind, c.images, c.outputs) == ("images", (2, 3, 7, 7), (2, 4, 5, 5))
    ((_, (call, bias, *mended)),) = found
    assert [a.slot for a in call.args] == [0, 1, 3]
    assert bias.args[0].slot == 3
    (edges,) = mended  # looks at all operands, and mends the result
    assert [a.slot for a in edges.args[:4]] == [0, 1, 2, 3]


def test_a_call_is_bound_to_its_operands_and_workspace():
    step, stored, results = one_step(OPS["relu"], [zeros(3)], {})
    lowering = Lowering(step, (*stored, *results))
    x, y = lowering.args()
    (first, second), size = lowering.lowered([Call(Routine(), y, x), Call(Routine(), x)])
    assert size == 512
    stream = []
    bound = [call.bound([1000, 2000], 4096) for call in (first, second)]
    for call in bound:
        call(stream)
    assert stream == [([2000, 1000], 4096), ([1000], 4096 + 256)]
    stream.clear()
    for point_to in (*bound[0].pointers(0), *bound[1].pointers(0)):
        point_to(3000)
    assert list(bound[1].pointers(1)) == []
    for call in bound:
        call(stream)
    assert stream == [([2000, 3000], 4096), ([3000], 4096 + 256)]
