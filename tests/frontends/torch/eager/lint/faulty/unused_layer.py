import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(5, 10)
        self.middle = nn.Sequential(  # expect: no-gradient
            nn.Linear(10, 10),
            nn.GELU(),
        )
        self.last = nn.Linear(10, 1)

    def forward(self, x):
        h = torch.tanh(self.first(x))
        self.middle(h)
        return self.last(h)


torch.manual_seed(5)
model = Net()
optimizer = torch.optim.Adam(model.parameters())
x = torch.randn(20, 5)
y = x.mean(1, keepdim=True)
for _step in range(12):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
print(f"{loss:.6f}")
