"""Ops that PyTorch runs on a program's memory on a GPU, in order with the program's own."""

from __future__ import annotations

import pytest
import torch

import opstep

TEXT = """\
graph main(x: f32[N, N], h: bf16[N, 3]) -> f32[N, N], bf16[N, 3] {
  y = mul(x, 2.0)
  z: f32[N, N] = torch.aten.linalg_inv(y)
  w = matmul(z, y)
  k: bf16[N, 3] = torch.aten.log1p(h)
  return w, k
}
"""


@pytest.mark.parametrize("mode", ["async", "debug"])
def test_values_are_those_of_eager_mode(mode):
    program = opstep.loads(TEXT, fallback="torch")
    x = torch.randn(64, 64) + 64 * torch.eye(64)
    h = torch.rand(64, 3).bfloat16()
    for _ in range(4):  # a graph would be captured in the second
        found = program.run("main", {"x": x, "h": h}, device="cuda", mode=mode)
        product, logs = found.values()
        torch.testing.assert_close(torch.tensor(product), torch.eye(64), rtol=1e-3, atol=1e-3)
        near = torch.tensor(logs.astype("f4"))
        torch.testing.assert_close(near, h.float().log1p(), rtol=1e-2, atol=1e-2)


def test_the_backend_runs_them_where_tensors_are():
    torch._dynamo.reset()

    def f(x):
        return torch.linalg.eigvalsh(x @ x.T + torch.eye(8, device="cuda")).relu()

    fast, x = torch.compile(f, backend="opstep", options={"fallback": True}), None
    for _ in range(4):
        x = torch.randn(8, 5, device="cuda", requires_grad=True)
        a, b = fast(x), f(x)
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)
        (first,) = torch.autograd.grad(a.sum(), x)
        (second,) = torch.autograd.grad(b.sum(), x)
        torch.testing.assert_close(first, second, rtol=1e-3, atol=1e-3)
