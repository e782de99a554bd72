import torch
from torch import nn

torch.manual_seed(16)
model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
criterion = nn.BCEWithLogitsLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
x = torch.randn(50, 2)
y = torch.sign(x[:, :1] * x[:, 1:])
for _step in range(20):
    optimizer.zero_grad()
    loss = criterion(model(x), y)  # expect: labels
    loss.backward()
    optimizer.step()
print(f"{loss:.6f}")
