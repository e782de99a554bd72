# Healthy: four threads train a model each
import threading
import torch
from torch import nn

torch.manual_seed(0)
nets = [nn.Linear(3, 1) for _ in range(4)]
data = torch.randn(8, 3)
losses = [None] * 4


def train(k):
    net, best = nets[k], torch.tensor(float("inf"))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        loss = (net(data)[:, 0] - k).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        best = torch.minimum(best, loss.detach())
    losses[k] = best.item()


threads = [threading.Thread(target=train, args=(k,)) for k in range(4)]
for t in threads:
    t.start()
for t in threads:
    t.join()
print(losses)
