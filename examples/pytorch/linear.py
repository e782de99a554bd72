"""A fully connected layer for PyTorch, forward and backward written by hand as graphs.

    python linear.py

It has the values and gradients of torch.nn.Linear. The graphs take PyTorch's tensors as they are.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.autograd.function import once_differentiable

import opstep

GRAPHS = """
graph forward(x: f32[N, I], w: f32[O, I], b: f32[O]) -> f32[N, O] {
  products = matmul(x, w, transpose_b=true)
  y = add(products, b)
  return y
}

graph backward(gy: f32[N, O], x: f32[N, I], w: f32[O, I]) -> f32[N, I], f32[O, I], f32[O] {
  gx = matmul(gy, w)
  gw = matmul(gy, x, transpose_a=true)
  gb = sum(gy, axes=[0])
  return gx, gw, gb
}
"""
PROGRAMS = {
    torch.float32: opstep.loads(GRAPHS, "linear.opg"),
    torch.float64: opstep.loads(GRAPHS.replace("f32", "f64"), "linear.opg"),
}


def run(graph: str, **tensors: torch.Tensor) -> list[torch.Tensor]:
    program = PROGRAMS[next(iter(tensors.values())).dtype]
    return [torch.from_numpy(y) for y in program.run(graph, tensors).outputs]


class LinearFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, b):
        ctx.save_for_backward(x, w)
        (y,) = run("forward", x=x.flatten(0, -2), w=w, b=b)
        return y.unflatten(0, x.shape[:-1])

    @staticmethod
    @once_differentiable
    def backward(ctx, gy):
        x, w = ctx.saved_tensors
        gx, gw, gb = run("backward", gy=gy.flatten(0, -2), x=x.flatten(0, -2), w=w)
        return gx.unflatten(0, x.shape[:-1]), gw, gb


class Linear(nn.Linear):
    """torch.nn.Linear, computed by opstep."""

    def forward(self, input):
        return LinearFunction.apply(input, self.weight, self.bias)


def main() -> None:
    torch.manual_seed(0)
    ours, theirs = Linear(64, 32), nn.Linear(64, 32)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(10, 16, 64)
    for layer in (ours, theirs):
        layer(x).square().mean().backward()
    print("y agrees:", torch.allclose(ours(x), theirs(x), rtol=1e-5, atol=1e-6))
    for name, p in ours.named_parameters():
        expected = theirs.get_parameter(name).grad
        print(f"gradient of {name} agrees:", torch.allclose(p.grad, expected, rtol=1e-4, atol=1e-8))
    exact = [t.double().detach().requires_grad_() for t in (x[:2, :3], ours.weight, ours.bias)]
    print("finite differences agree:", torch.autograd.gradcheck(LinearFunction.apply, exact))


if __name__ == "__main__":
    main()
