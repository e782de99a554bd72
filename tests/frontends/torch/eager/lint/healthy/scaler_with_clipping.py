import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(4)
model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=512.0, growth_interval=5)
x, y = torch.randn(48, 6), torch.randint(0, 2, (48,))
for _step in range(12):
    optimizer.zero_grad()
    for part in (slice(0, 24), slice(24, 48)):
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(x[part]), y[part]) / 2
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
print(f"{loss.item():.6f} {norm:.6f}")
