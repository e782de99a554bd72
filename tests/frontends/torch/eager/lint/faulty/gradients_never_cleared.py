import torch
from torch import nn

torch.manual_seed(18)
model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
x, y = torch.randn(60, 4), torch.randint(0, 3, (60,))
for step in range(40):
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()  # expect: loss-stalls
    optimizer.step()
    if step % 10 == 9:
        print(f"{loss:.4f}")
