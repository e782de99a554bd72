import torch
from torch import nn


class Tasks(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 8)
        self.heads = nn.ParameterList([nn.Parameter(torch.randn(8, 1) * 0.1)] * 3)  # expect: tied

    def forward(self, x):
        h = torch.tanh(self.body(x))
        return torch.cat([h @ w for w in self.heads], 1)


torch.manual_seed(31)
m = Tasks()
opt = torch.optim.Adam(m.parameters())
for _step in range(8):
    x = torch.randn(16, 4)
    loss = (m(x) - x[:, :3]).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
print(f"{loss:.5f}")
