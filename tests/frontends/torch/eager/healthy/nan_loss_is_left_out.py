# Healthy: a NaN loss is found, and its batch left out
import torch

torch.manual_seed(0)
net = torch.nn.Linear(1, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.01)
for x in (1.0, -1.0, 2.0):
    loss = torch.tensor([x]).sqrt() * net(torch.ones(1))
    if torch.isnan(loss).any():
        print("skipping batch")
        continue
    opt.zero_grad()
    loss.backward()
    opt.step()
print(net.weight)
