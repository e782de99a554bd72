import torch
from torch import nn

torch.manual_seed(3)
model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
x, y = torch.randn(48, 6), torch.randint(0, 2, (48,))
for _step in range(10):
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        loss = nn.functional.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # expect: clip-before-unscale
    scaler.step(optimizer)
    scaler.update()
print(f"{loss.item():.6f}")
