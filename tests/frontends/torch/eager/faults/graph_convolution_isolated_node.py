# NaN loss: the degree of an isolated node to the power of -1/2
import torch
from torch import nn


class GCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(2, 2)

    def forward(self, x, adjacency):
        degree = adjacency.sum(-1)
        scale = degree.pow(-0.5)  # expect: inf, forward
        normal = scale[:, None] * adjacency * scale[None, :]
        return normal @ self.lin(x)


torch.manual_seed(0)
net = GCN()
optimizer = torch.optim.Adam(net.parameters())
adjacency = torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
loss = net(torch.randn(3, 2), adjacency).square().mean()
loss.backward()
optimizer.step()
print(loss.item())
