import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

torch.manual_seed(36)
net = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
for _step in range(20):
    params = dict(net.named_parameters())
    phase = torch.rand(1)
    x = torch.rand(10, 1)
    inner = F.mse_loss(functional_call(net, params, x), torch.sin(6 * x + phase))
    grads = torch.autograd.grad(inner, list(params.values()), create_graph=True)
    fast = {n: p - 0.05 * g for (n, p), g in zip(params.items(), grads, strict=False)}
    x = torch.rand(10, 1)
    loss = F.mse_loss(functional_call(net, fast, x), torch.sin(6 * x + phase))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss:.6f}")
