import copy

import torch
import torch.nn.functional as F
from torch import nn


class Byol(nn.Module):
    def __init__(self):
        super().__init__()
        self.online = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 8))
        self.predict = nn.Linear(8, 8)
        self.teacher = copy.deepcopy(self.online)
        self.teacher.requires_grad_(False)

    @torch.no_grad()
    def update(self):
        for slow, fast in zip(self.teacher.parameters(), self.online.parameters(), strict=False):
            slow.mul_(0.95).add_(fast, alpha=0.05)

    def forward(self, a, b):
        with torch.no_grad():
            goal = self.teacher(b)
        return 2 - 2 * F.cosine_similarity(self.predict(self.online(a)), goal.detach()).mean()


torch.manual_seed(39)
net = Byol()
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
for _step in range(40):
    x = torch.randn(32, 8)
    loss = net(x + 0.1 * torch.randn_like(x), x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    net.update()
print(f"{loss:.6f}")
