import torch
from torch import nn

torch.manual_seed(26)
net = nn.Sequential(
    nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 2)
)
opt = torch.optim.SGD(net.parameters(), lr=0.05)


def attack(x, y):
    net.eval()
    d = torch.zeros_like(x, requires_grad=True)
    for _ in range(5):
        nn.functional.cross_entropy(net(x + d), y).backward()
        d.data = (d + 0.02 * d.grad.sign()).clamp(-0.1, 0.1)
        d.grad.zero_()
    return d.detach()


for _k in range(30):
    x = torch.randn(32, 8)
    y = (x[:, 0] > 0).long()
    d = attack(x, y)
    net.train()
    loss = nn.functional.cross_entropy(net(x + d), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
print(f"{loss:.4f}")
