import torch
from torch import nn

torch.manual_seed(21)
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * (1 // 2))  # expect: loss-stalls
for _step in range(40):
    x = torch.randn(16, 3)
    loss = (model(x) - x.mean(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss:.4f}")
