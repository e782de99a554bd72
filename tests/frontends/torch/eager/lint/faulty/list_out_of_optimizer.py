import torch
from torch import nn

torch.manual_seed(7)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 16)
        self.gate = nn.Linear(6, 16)  # expect: not-in-optimizer
        self.head = nn.Linear(16, 2)

    def forward(self, x):
        return self.head(torch.tanh(self.body(x)) * torch.sigmoid(self.gate(x)))


model = Net()
optimizer = torch.optim.SGD([*model.body.parameters(), *model.head.parameters()], lr=0.1)
x, y = torch.randn(40, 6), torch.randint(0, 2, (40,))
for _step in range(25):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
print(f"{loss:.6f}")
