import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 32)
        self.second = nn.Linear(32, 32)
        self.last = nn.Linear(32, 1)
        nn.init.constant_(self.second.bias, -8.0)

    def forward(self, x):
        h = F.relu(self.first(x))
        h = F.relu(self.second(h))  # expect: dead
        return self.last(h)


torch.manual_seed(9)
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
for _step in range(10):
    x = torch.randn(32, 4)
    optimizer.zero_grad()
    loss = F.mse_loss(net(x), x.sum(1, keepdim=True))
    loss.backward()
    optimizer.step()
print(f"{loss:.6f}")
