import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 12, 3)
        self.norm = nn.BatchNorm2d(12)
        self.head = nn.Linear(12, 4)

    def forward(self, x):
        return self.head(torch.tanh(self.norm(self.conv(x))).mean((2, 3)))


def accuracy(model, x, y):
    model.eval()  # expect: eval-differs
    with torch.no_grad():
        return (model(x).argmax(1) == y).float().mean().item()


torch.manual_seed(12)
model = Net()
x, y = 40 + 20 * torch.rand(64, 3, 8, 8), torch.randint(0, 4, (64,))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
print(accuracy(model, x, y))
for _epoch in range(30):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
print(accuracy(model, x, y))
