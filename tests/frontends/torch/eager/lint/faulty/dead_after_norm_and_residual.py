import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        nn.init.constant_(self.norm.bias, -9.0)

    def forward(self, x):
        return torch.relu(x + self.norm(self.conv(x)))  # expect: dead


torch.manual_seed(11)
net = nn.Sequential(
    nn.Conv2d(1, 12, 3), Block(12), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 3)
)
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
for _step in range(12):
    x, y = torch.randn(8, 1, 8, 8), torch.randint(0, 3, (8,))
    loss = nn.functional.cross_entropy(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
print(f"{loss:.5f}")
