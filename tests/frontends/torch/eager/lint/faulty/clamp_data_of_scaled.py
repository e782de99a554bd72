import torch
from torch import nn

torch.manual_seed(8)
rnn = nn.GRU(3, 8, batch_first=True)
head = nn.Linear(8, 1)
params = [*rnn.parameters(), *head.parameters()]
opt = torch.optim.SGD(params, lr=1e-2)
scaler = torch.amp.GradScaler("cpu", init_scale=512.0)
for _step in range(15):
    x = torch.randn(10, 6, 3)
    out, _ = rnn(x)
    loss = (head(out[:, -1]) - x.mean((1, 2))[:, None]).pow(2).mean()
    opt.zero_grad()
    scaler.scale(loss).backward()
    for p in params:
        p.grad.data.clamp_(-0.1, 0.1)  # expect: clip-before-unscale
    scaler.step(opt)
    scaler.update()
print(f"{loss:.5f}")
