# Healthy: hooks of modules, tensors, parameters and optimizers, also such as repair a gradient
import torch
from torch import nn

torch.manual_seed(0)
seen = []
net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
net.register_forward_pre_hook(lambda m, a: seen.append("before"))
net[1].register_forward_hook(lambda m, a, out: out * 0.5)
net[1].register_full_backward_hook(lambda m, gi, go: seen.append(go[0].norm().item()))
net[0].weight.register_post_accumulate_grad_hook(
    lambda p: seen.append(p.grad.clamp_(-1, 1).sum().item())
)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
optimizer.register_step_post_hook(lambda o, a, k: seen.append("stepped"))
for _ in range(2):
    out = net(torch.randn(4, 3))
    scale = torch.zeros(1, requires_grad=True)
    scale.register_hook(lambda g: torch.nan_to_num(g, posinf=1.0))
    loss = out.square().mean() + scale.sqrt().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item(), scale.grad.tolist(), seen)
