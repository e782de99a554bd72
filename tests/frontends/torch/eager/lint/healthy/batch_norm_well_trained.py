import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(22)
net = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1),
    nn.BatchNorm2d(8),
    nn.ReLU(),
    nn.Dropout2d(0.3),
    nn.Conv2d(8, 8, 3, stride=2),
    nn.BatchNorm2d(8),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(32, 16),
    nn.BatchNorm1d(16),
    nn.ReLU(),
    nn.Dropout(0.5),
    nn.Linear(16, 2),
)
optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
for step in range(60):
    net.train()
    y = torch.randint(0, 2, (16,))
    x = torch.randn(16, 1, 6, 6) * 2 + 3 * y.view(-1, 1, 1, 1)
    loss = F.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 19:
        net.eval()
        with torch.no_grad():
            print((net(x).argmax(1) == y).float().mean().item())
