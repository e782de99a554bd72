"""Tensors of a script as views show them, next to arrays of NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from opstep.editors.views import HostTensor, histogram
from opstep.runtime.ir.errors import InputError

torch = pytest.importorskip("torch")

LARGE = 5_000_000  # elements, more than are looked at in one go


def of(t):
    from opstep.frontends.torch.debugging.tensors import ScriptTensor

    return ScriptTensor(t)


def tensors():
    torch.manual_seed(0)
    odd = torch.randn(6, 7) * 1e-3
    odd[0, 0], odd[1, 1], odd[2, 2], odd[3, 3] = torch.nan, torch.inf, -torch.inf, 0.0
    odd[4, 4] = 1e-42  # subnormal in f32
    yield "f32", odd
    yield "transposed", odd.t()
    yield "every other", odd[::2, 1:]
    yield "f16", odd.half()
    yield "bf16", odd.bfloat16()
    yield "f64", odd.double()
    yield "all NaN", torch.full((3,), torch.nan)
    yield "i64", torch.tensor([[-(2**62), 5], [0, 2**62]])
    yield "u8", torch.arange(256, dtype=torch.uint8)
    yield "bool", torch.tensor([True, False, True])
    yield "one number", torch.tensor(2.5)
    yield "none", torch.zeros(0, 4)
    yield "large", torch.arange(LARGE, dtype=torch.int32)
    yield "large and transposed", torch.arange(LARGE, dtype=torch.float32).reshape(1000, 5000).t()


TENSORS = dict(tensors())


@pytest.mark.parametrize("name", TENSORS)
def test_figures_and_elements_are_those_of_the_array(name):
    t = TENSORS[name]
    mine = of(t)
    host = HostTensor(mine.array())
    assert mine.type == host.type and mine.type.shape == tuple(t.shape)
    assert np.array_equal(
        np.asarray(mine.array(), np.float64), t.double().numpy(), equal_nan=True
    )  # fmt: skip
    found, wanted = mine.statistics(), host.statistics()
    for figure in ("count", "nan", "posinf", "neginf", "zero", "subnormal", "min", "max"):
        assert getattr(found, figure) == getattr(wanted, figure), figure
    for figure in ("mean", "std", "l2", "absmax"):
        one, other = getattr(found, figure), getattr(wanted, figure)
        assert one == (other if other is None else pytest.approx(other, rel=1e-9)), figure
    assert found.histogram == wanted.histogram
    assert histogram(mine, 8) == histogram(host, 8)


@pytest.mark.parametrize("name", ["f32", "transposed", "bf16"])
def test_places_are_those_of_elements_that_are_not_finite(name):
    t = TENSORS[name]
    array = t.double().numpy()
    masks = {
        "nan": np.isnan, "posinf": np.isposinf, "neginf": np.isneginf,
        "any": lambda a: ~np.isfinite(a),
    }  # fmt: skip
    for kind, mask in masks.items():
        assert of(t).places(kind).tolist() == np.argwhere(mask(array)).tolist()


def test_types_that_views_do_not_have_are_widened():
    eights = of(torch.tensor([1.5, 448.0]).to(torch.float8_e4m3fn))
    assert eights.text == "float8_e4m3fn[2]" and eights.array().tolist() == [1.5, 448.0]
    words = of(torch.tensor([65535], dtype=torch.uint16))
    assert words.text == "uint16[1]" and words.array().tolist() == [65535]


def test_views_of_tensors_are_read_as_the_script_sees_them():
    t = torch.view_as_complex(torch.arange(4.0).reshape(2, 2)).conj().imag  # with a negative bit
    assert t.is_neg() and of(t).array().tolist() == [-1, -3]

    class Own(torch.Tensor):
        pass

    assert of(torch.ones(2).as_subclass(Own)).array().tolist() == [1, 1]
    weight = torch.nn.Parameter(torch.ones(2))
    assert of(weight).part((slice(0, 1),)).tolist() == [1]


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: torch.empty(2, device="meta"), "a shape and no elements"),
        (lambda: torch.eye(2).to_sparse(), "to_dense"),
        (lambda: torch.ones(2, dtype=torch.complex64), "its real, its imag"),
        (lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8), "dequantize"),
        (lambda: torch.nested.nested_tensor([torch.ones(2)], layout=torch.jagged), "no elements"),
    ],
)
def test_what_is_no_plain_array_says_what_to_look_at(make, why):
    with pytest.raises(InputError, match=why):
        of(make())
