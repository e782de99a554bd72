"""PyTorch's tensors where they lie, and results that become PyTorch's."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import opstep
from opstep.api.executable import Executable
from opstep.api.external import ExternalTensor
from opstep.runtime.ir.types import DTYPES

torch = pytest.importorskip("torch")

NAMES = {"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16"}
NAMES |= {"i64": "int64", "i32": "int32", "i16": "int16", "i8": "int8", "u8": "uint8"}
NAMES |= {"bool": "bool"}


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("shape", [(), (2, 3), (0, 3), (1,)])
def test_there_and_back_without_a_copy(name, shape):
    tensor = torch.ones(shape, dtype=getattr(torch, NAMES[name]))
    there = ExternalTensor.of(tensor)
    assert (there.type.dtype.name, there.type.shape) == (name, shape)
    assert there.address == tensor.data_ptr() or not tensor.numel()
    back = torch.from_dlpack(there)
    assert (back.dtype, back.shape, back.data_ptr()) == (
        tensor.dtype, tensor.shape, tensor.data_ptr(),
    )  # fmt: skip
    expected = tensor.clone()
    del tensor, there
    gc.collect()
    assert torch.equal(back, expected), "it keeps the memory"


def test_a_capsule_of_a_gpu_names_its_gpu():
    t = ExternalTensor.of(torch.ones(2)).type
    assert ExternalTensor(1 << 40, t, "cuda:3").__dlpack_device__() == (2, 3)
    assert ExternalTensor(1 << 40, t, "cuda").__dlpack_device__() == (2, 0)


def test_capsules_that_nobody_takes():
    tensor = ExternalTensor.of(torch.ones(1000))
    for _ in range(100):
        tensor.__dlpack__()
    with pytest.raises(BufferError, match="where it lies"):
        tensor.__dlpack__(copy=True)
    with pytest.raises(BufferError, match="readonly"):
        ExternalTensor.of(np.broadcast_to(np.float32(1), 3)).__dlpack__()


def test_a_tensor_that_requires_grad_and_one_that_is_turned():
    weight = torch.nn.Parameter(torch.ones(3, 4, dtype=torch.bfloat16))
    assert ExternalTensor.of(weight).address == weight.data_ptr()
    turned = torch.arange(12.0).reshape(3, 4).T
    found = ExternalTensor.of(turned)
    assert found.readonly, "a copy"
    np.testing.assert_array_equal(np.asarray(found), turned.numpy())


@pytest.mark.parametrize(
    "value, message",
    [
        (torch.ones(2, dtype=torch.complex64), "of a type that no tensor has"),
        (torch.ones(2, device="meta"), "cannot be used where it is"),
        (torch.ones(2).to_sparse(), "cannot be used where it is"),
        (torch.ones(2, dtype=torch.complex64).conj().imag, "resolve_neg"),
        (np.ones(2, ">f4"), "no tensor has elements of type >f4"),
        ([1.0], "cannot be used where it is"),
    ],
)
def test_what_cannot_be_used_is_refused(value, message):
    with pytest.raises(opstep.OpstepError, match=message):
        ExternalTensor.of(value)


LINEAR = """
param w: bf16[4, 3] = zeros()
param b: bf16[4] = zeros()
state calls: i32[] = 0
graph main(x: bf16[N, 3]) -> bf16[N, 4] {
  y = linear(x, w, b)
  one = full(value=1, shape=[], dtype=i32)
  count = add(calls, one)
  calls <- count
  return y
}
"""


def test_a_model_runs_on_its_own_parameters():
    """They are read where an optimiser updates them; results live longer than all of it."""
    model = torch.nn.Linear(3, 4, dtype=torch.bfloat16)
    program = opstep.loads(LINEAR)
    for name, parameter in zip(("w", "b"), model.parameters(), strict=True):
        program.params.adopt(name, ExternalTensor.of(parameter))
    calls = torch.zeros((), dtype=torch.int32)
    program.params.adopt("calls", ExternalTensor.of(calls))
    x = torch.randn(5, 3, dtype=torch.bfloat16)
    executable = Executable(program, "main", [ExternalTensor.of(x).type])
    kept = []
    for k in range(3):
        (result,) = executable([ExternalTensor.of(x)])
        kept.append((torch.from_dlpack(result), model(x).detach()))
        assert calls == k + 1
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.5)
    del executable, program, result
    gc.collect()
    for found, expected in kept:
        torch.testing.assert_close(found, expected)


def test_an_optimiser_s_parameters_are_set_from_tensors_that_require_grad():
    program, model = opstep.loads(LINEAR), torch.nn.Linear(3, 4, dtype=torch.bfloat16)
    program.params.update({"w": model.weight, "b": model.bias})
    x = torch.randn(5, 3, dtype=torch.bfloat16)
    found = program.run("main", {"x": x})["y"].astype("f4")
    np.testing.assert_allclose(found, model(x).detach().float(), rtol=1e-2, atol=1e-2)
