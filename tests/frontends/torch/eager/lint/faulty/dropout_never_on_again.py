import torch
from torch import nn


def validate(model, x, y):
    model.eval()  # expect: eval-differs
    with torch.no_grad():
        return nn.functional.cross_entropy(model(x), y).item()


torch.manual_seed(23)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 3))
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
model.train()
for _epoch in range(8):
    for _k in range(6):
        x = torch.randn(16, 8)
        loss = nn.functional.cross_entropy(model(x), x[:, :3].argmax(1))
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(f"{loss:.4f} {validate(model, x, x[:, :3].argmax(1)):.4f}")
