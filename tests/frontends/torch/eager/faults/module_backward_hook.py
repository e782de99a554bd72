# NaN gradient: a full backward hook scales a gradient of 0 by its largest element
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
nn.init.constant_(net[0].bias, -50.0)


def rescale(module, grad_input, grad_output):
    (g,) = grad_input
    top = g.abs().max()
    return (g / top,)  # expect: nan, backward


net[1].register_full_backward_hook(rescale)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
net(torch.randn(5, 3)).sum().backward()
optimizer.step()
print(net[0].weight.isnan().all().item())
