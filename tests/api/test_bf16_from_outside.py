"""bf16 tensors and files of PyTorch as inputs and params."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import opstep
from opstep.api.external import array_of

torch = pytest.importorskip("torch")

TEXT = """
param w: bf16[2, 3] = zeros()
graph g(x: bf16[2, 3]) -> bf16[2, 3] {
  y = add(x, w)
  return y
}
"""


def numbers(tensor) -> list:
    return tensor.float().numpy().tolist()


WIDE = torch.arange(24.0).to(torch.bfloat16).reshape(4, 6)


@pytest.mark.parametrize(
    "x",
    [
        WIDE[:2, :3].contiguous(),
        WIDE[1:3, ::2],
        WIDE.T[3:5, 1:],
        torch.ones((), dtype=torch.bfloat16).expand(2, 3),
        torch.nn.Parameter(WIDE[:2, :3]),
        torch.tensor([[float("nan"), float("inf"), -0.0], [1e-40, -3e38, 1 / 3]]).bfloat16(),
    ],
    ids=["rows", "strides", "turned", "broadcast", "grad", "odd"],
)
def test_tensors_are_inputs_and_params(x):
    program = opstep.loads(TEXT)
    np.testing.assert_array_equal(
        program.run(inputs={"x": x})["y"].astype("f4"), x.detach().float() + 0.0
    )
    program.params["w"] = x
    bits = np.array(program.params["w"]).view(np.int16)
    np.testing.assert_array_equal(bits, x.contiguous().view(torch.int16).numpy())
    assert np.isfinite(numbers(WIDE)).all(), "the tensor is still there"


def test_shapes_without_elements_and_of_one():
    for shape in [(0, 3), (), (2, 0)]:
        found = array_of(torch.zeros(shape, dtype=torch.bfloat16))
        assert found is not None
        assert found.shape == shape


@pytest.mark.parametrize(
    "x, message",
    [
        (torch.zeros(2, 3), "has elements of type f32, not bf16\nhint: convert it: to bfloat16"),
        (torch.zeros(2, 3, dtype=torch.complex64), "of type complex64, which no tensor has"),
        (torch.zeros(2, 3, dtype=torch.complex64).imag._neg_view(), "negative bit"),
        (torch.zeros(2, 4, dtype=torch.bfloat16), r"is 3 in the program and 4 here|\[2, 4\]"),
        (torch.zeros(2, 3, dtype=torch.bfloat16).to_sparse(), "cannot be read as an array"),
    ],
)
def test_what_does_not_fit_is_refused(x, message):
    with pytest.raises(opstep.OpstepError, match=message):
        opstep.loads(TEXT).run(inputs={"x": x})


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_files(tmp_path, framework):
    """In a process of its own, in which nothing has imported ml_dtypes."""
    from safetensors.torch import save_file

    save_file({"w": WIDE[:2, :3].contiguous()}, tmp_path / "w.safetensors")
    (tmp_path / "m.opg").write_text(TEXT)
    script = f"""
import opstep
from safetensors.{framework} import load_file
program = opstep.load("m.opg")
program.params.update(load_file("w.safetensors"))
print(program.params["w"].tolist())
"""
    ran = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ran.stdout.strip() == str(numbers(WIDE[:2, :3])), ran.stderr
