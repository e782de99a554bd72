import torch
from torch import nn

torch.manual_seed(24)
model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Dropout(0.5), nn.Linear(32, 3))
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
held = torch.randn(64, 8)
for _epoch in range(8):
    for _k in range(6):
        x = torch.randn(16, 8)
        loss = nn.functional.cross_entropy(model(x), x[:, :3].argmax(1))
        opt.zero_grad()
        loss.backward()
        opt.step()
    with torch.no_grad():
        for part in held.split(16):
            out = model(part)  # expect: eval-differs
            right = (out.argmax(1) == part[:, :3].argmax(1)).float().mean()
    print(f"{loss:.4f} {right:.4f}")
