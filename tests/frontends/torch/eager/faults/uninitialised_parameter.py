# NaN loss: a parameter is made by torch.empty and never initialised
import torch
from torch import nn

torch.use_deterministic_algorithms(True)  # fills such memory with NaN
torch.manual_seed(0)


class Scale(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n))
        self.bias = nn.Parameter(torch.zeros(n))

    def forward(self, x):
        scaled = x * self.weight  # expect: nan, forward
        return scaled + self.bias


net = nn.Sequential(nn.Linear(3, 4), Scale(4))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
loss = net(torch.randn(2, 3)).mean()
loss.backward()
optimizer.step()
print(loss.item())
