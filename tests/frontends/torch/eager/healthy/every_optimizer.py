# Healthy: the optimizers of torch.optim, also where gradients are 0
import torch
from torch import nn

x = torch.linspace(-1, 1, 12).view(4, 3)
made = {
    "SGD": dict(lr=0.1, momentum=0.9, nesterov=True),
    "Adam": dict(lr=0.1, amsgrad=True),
    "AdamW": dict(lr=0.1, foreach=False),
    "NAdam": dict(lr=0.1),
    "RAdam": dict(lr=0.1),
    "Adamax": dict(lr=0.1),
    "Adagrad": dict(lr=0.1),
    "Adadelta": dict(),
    "RMSprop": dict(lr=0.1, centered=True),
    "Rprop": dict(lr=0.1),
    "ASGD": dict(lr=0.1),
}
for name, options in made.items():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    nn.init.constant_(net[0].bias, -5.0)
    optimizer = getattr(torch.optim, name)(net.parameters(), **options)
    for _ in range(3):
        loss = (net(x) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(name, loss.item(), net[2].bias.item())
