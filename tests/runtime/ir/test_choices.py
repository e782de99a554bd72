"""What an op says that a word among its attributes can be is what its rule takes."""

import pytest

import opstep.kernels  # noqa: F401 - registers the ops
from opstep.runtime.ir.mesh import Group, Mesh
from opstep.runtime.ir.op import OPS, Mismatch, complete, resolve
from opstep.runtime.ir.types import TensorType, f32, i64

FREE = {("einsum", "equation")}  # texts that are no choice between words
WORDS = [(op, a) for op in OPS.values() for a in op.attrs if a.type == "str"]
IMAGES, GRID = TensorType(f32, (1, 1, 4, 4)), TensorType(f32, (1, 4, 4, 2))
SAMPLES = {  # operands and attributes that are right but for the word
    "gelu": ([TensorType(f32, (4,))], {}),
    "all_reduce": ([TensorType(f32, (4,))], {"over": Group(Mesh(), Mesh().names)}),
    "reduce_scatter": ([TensorType(f32, (4,))], {"over": Group(Mesh(), Mesh().names)}),
    "pad": ([TensorType(f32, (4,))], {"pads": (1, 1)}),
    **{
        f"upsample{n}d{suffix}": ([TensorType(f32, (1, 1, *[size] * n))], {attr: (value,) * n})
        for n in (1, 2, 3)
        for suffix, size, attr, value in (("", 4, "scale", 2), ("_grad", 8, "size", 4))
    },
    "grid_sample2d": ([IMAGES, GRID], {}),
    "grid_sample2d_grad": ([IMAGES, IMAGES, GRID], {}),
    "scatter_reduce": ([TensorType(f32, (4,)), TensorType(i64, (2,)), TensorType(f32, (2,))], {}),
    "embedding_bag": (
        [TensorType(f32, (5, 4)), TensorType(i64, (7,)), TensorType(i64, (2,))],
        {},
    ),
    "softmax_cross_entropy": ([TensorType(f32, (4, 3)), TensorType(i64, (4,))], {}),
    "nll_loss": ([TensorType(f32, (4, 3)), TensorType(i64, (4,))], {}),
}
PAIR = ([TensorType(f32, (4,)), TensorType(f32, (4,))], {})


def test_every_word_is_a_choice():
    for op, attr in WORDS:
        if (op.name, attr.name) not in FREE:
            assert op.choices[attr.name], (op.name, attr.name)
            assert attr.required or attr.default in op.choices[attr.name]


@pytest.mark.parametrize(
    "op, name", [(op, name) for op in OPS.values() for name in op.choices], ids=str
)
def test_choices_are_taken_and_others_are_not(op, name):
    words = op.choices[name]
    operands, attrs = SAMPLES.get(op.name, PAIR)
    if op.name.endswith("_grad") and op.name not in SAMPLES:  # x, label and the loss's gradient
        operands, attrs = SAMPLES[op.name.removesuffix("_grad")]
        operands = [*operands, TensorType(f32, ())]
    for word in words:
        gy = [TensorType(f32, (4,))] if word == "none" and op.name.endswith("_grad") else []
        given = [*operands[:-1], *gy] if gy and op.name not in SAMPLES else operands
        assert resolve(op, given, complete(op, {**attrs, name: word})).results
    with pytest.raises(Mismatch) as caught:
        resolve(op, operands, complete(op, {**attrs, name: "no such word"}))
    assert caught.value.at == name
