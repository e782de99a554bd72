import torch
from torch import nn


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.gain = torch.ones(4, requires_grad=True)

    def forward(self, x):
        return self.lin(x) * self.gain


torch.manual_seed(20)
m = Scaled()
opt = torch.optim.Adam(m.parameters(), lr=1e-2)
for _step in range(25):
    x = torch.randn(16, 4)
    loss = (m(x) - 3 * x).pow(2).mean()
    opt.zero_grad()
    loss.backward()  # expect: not-in-optimizer
    opt.step()
print(f"{loss:.5f}")
