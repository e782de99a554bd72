import torch
import torch.nn.functional as F
from torch import nn


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Linear(12, 4)
        self.bias = nn.Parameter(torch.zeros(12))

    def forward(self, x):
        return F.linear(torch.tanh(self.encode(x)), self.encode.weight.t(), self.bias)


class Adapted(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base = base
        self.weight = base.weight
        self.weight.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(2, base.in_features) / 4)
        self.up = nn.Parameter(torch.zeros(base.out_features, 2))

    def forward(self, x):
        return self.base(x) + x @ self.down.t() @ self.up.t()


torch.manual_seed(14)
model = nn.Sequential(Tied(), Adapted(nn.Linear(12, 12)))
optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-2)
x = torch.randn(32, 12)
for _step in range(20):
    loss = F.mse_loss(model(x), x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss:.6f}")
