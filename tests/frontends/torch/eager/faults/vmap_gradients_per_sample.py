# NaN gradient: gradients per sample, vmap(grad), where one sample sits on the centre
import torch
from torch.func import functional_call, grad, vmap

torch.manual_seed(0)
net = torch.nn.Linear(2, 2, bias=False)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)


def distance(params, x):
    y = functional_call(net, params, (x[None],))
    return (y - x).pow(2).sum().pow(0.5)  # expect: inf, backward


x = torch.randn(4, 2)
x[2] = 0
params = {n: p.detach() for n, p in net.named_parameters()}
each = vmap(grad(distance), in_dims=(None, 0))(params, x)
for name, p in net.named_parameters():
    p.grad = each[name].mean(0)
optimizer.step()
print(net.weight.tolist())
