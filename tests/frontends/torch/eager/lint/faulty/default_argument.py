import torch
from torch import nn

torch.manual_seed(32)


class Block(nn.Module):
    def __init__(self, inner=nn.Linear(6, 6)):
        super().__init__()
        self.norm = nn.LayerNorm(6)
        self.inner = inner  # expect: tied

    def forward(self, x):
        return x + torch.tanh(self.inner(self.norm(x)))


net = nn.Sequential(Block(), Block(), Block())
opt = torch.optim.Adam(net.parameters())
for _step in range(8):
    x = torch.randn(16, 6)
    loss = (net(x) - x.flip(1)).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
print(f"{loss:.5f}")
