# NaN gradient: an own autograd.Function with a vmap rule, its backward divides by 0
import torch


class Unit(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(v):
        return v / v.norm().clamp(min=1e-8)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        (v,) = ctx.saved_tensors
        unit = v / v.norm()  # expect: nan, backward
        return (grad - (grad * unit).sum() * unit) / v.norm().clamp(min=1e-8)

v = torch.nn.Parameter(torch.eye(3)[:, 1:])
torch.func.vmap(Unit.apply)(v).sum().backward()
torch.optim.SGD([v], lr=0.1).step()
print(v.tolist())
