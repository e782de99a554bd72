# Healthy: a model is made on the meta device, then gets its memory and values
import torch
from torch import nn

torch.manual_seed(0)
with torch.device("meta"):
    net = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3), nn.Linear(3, 1))
print(net[0].weight.device, net(torch.empty(2, 4, device="meta")).shape)
net = net.to_empty(device="cpu")
for p in net.parameters():
    nn.init.uniform_(p, -0.5, 0.5)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(2):
    loss = net(torch.randn(5, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
