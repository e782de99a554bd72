# Healthy: make_fx traces a step with its gradient
import torch
from torch.fx.experimental.proxy_tensor import make_fx

torch.manual_seed(0)


def step(w, x):
    loss = (x @ w).masked_fill(x.sum(-1) > 5, -torch.inf).softmax(0).square().sum()
    return torch.autograd.grad(loss, w)[0]


w, x = torch.randn(3, requires_grad=True), torch.randn(4, 3)
graph = make_fx(step)(w, x)
print(len(list(graph.graph.nodes)))
print(graph(w, x).tolist(), step(w, x).tolist())
