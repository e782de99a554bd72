import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(33)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(5, 12)
        self.heads = nn.ModuleList([nn.Linear(12, 2) for _ in range(3)])

    def forward(self, x, k):
        return self.heads[k](torch.tanh(self.body(x)))


def train():
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(24):
        x, y = torch.randn(16, 5), torch.randint(0, 2, (16,))
        net.body.requires_grad_(step >= 8)
        loss = F.cross_entropy(net(x, step % 3), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


print(f"{train():.6f} {train():.6f}")
