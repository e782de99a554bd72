import torch
from torch import nn

torch.manual_seed(11)
model = nn.Sequential(
    nn.Linear(5, 24),
    nn.BatchNorm1d(24, momentum=0.0),  # expect: eval-differs
    nn.ReLU(),
    nn.Dropout(0.2),
    nn.Linear(24, 1),
)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _step in range(60):
    x = torch.randn(64, 5) * 3 + 2
    loss = nn.functional.mse_loss(model(x), x[:, :1] * x[:, 1:2])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
model.eval()
with torch.no_grad():
    print(f"{nn.functional.mse_loss(model(x), x[:, :1] * x[:, 1:2]):.5f}")
