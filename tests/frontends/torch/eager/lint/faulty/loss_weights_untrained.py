import torch
from torch import nn


class Centers(nn.Module):
    def __init__(self, classes, width):
        super().__init__()
        self.centers = nn.Parameter(torch.randn(classes, width))  # expect: not-in-optimizer

    def forward(self, features, labels):
        return (features - self.centers[labels]).square().sum(1).mean()


torch.manual_seed(8)
net = nn.Sequential(nn.Linear(10, 20), nn.ELU(), nn.Linear(20, 4))
criterion = Centers(3, 4)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
x, y = torch.randn(30, 10), torch.randint(0, 3, (30,))
for _step in range(25):
    optimizer.zero_grad(set_to_none=False)
    loss = criterion(net(x), y)
    loss.backward()
    optimizer.step()
print(f"{loss:.6f}")
