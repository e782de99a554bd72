# Healthy: torch.func: vmap, grad, jvp, jacrev and a Hessian
import torch
from torch.func import grad, hessian, jacrev, jvp, vmap

torch.manual_seed(0)


def f(w, x):
    masked = torch.where(x > 0, x, -torch.inf)
    return (w * x).tanh().sum() + masked.softmax(-1).square().sum()


w, x = torch.randn(4), torch.randn(3, 4).abs() + 0.1
print(vmap(grad(f), (None, 0))(w, x).tolist())
print(jvp(lambda w: f(w, x[0]), (w,), (torch.ones(4),))[1].item())
print(jacrev(lambda w: (w[:, None] * w).sum(0))(w).tolist())
print(hessian(f)(w, x[1]).diagonal().tolist())
print(vmap(lambda r: r.norm(), chunk_size=2)(x).tolist())
