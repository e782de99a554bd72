import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(20)
net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.LBFGS(net.parameters(), lr=0.5, max_iter=2, history_size=3)
x = torch.rand(40, 2)
y = torch.sin(3 * x[:, :1])


def closure():
    optimizer.zero_grad()
    loss = F.mse_loss(net(x), y)
    loss.backward()
    return loss


for _step in range(22):
    loss = optimizer.step(closure)
print(f"{loss:.6f}")
