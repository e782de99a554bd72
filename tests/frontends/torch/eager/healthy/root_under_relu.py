# Healthy: an infinite derivative of a root at 0 is masked by the ReLU before it
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(3, 6), nn.ReLU())
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(3):
    h = net(torch.randn(5, 3))
    loss = h.sqrt().mean() + (h + h.relu()).pow(0.5).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item(), net[0].bias.tolist())
w = torch.tensor([-2.0, 0.5, 3.0], requires_grad=True)
w.clamp(-1, 1).asin().sum().backward()
print(w.grad.tolist())
