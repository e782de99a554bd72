import torch
from torch import nn

torch.manual_seed(38)
EPOCHS, BATCHES = 10, 10
net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
opt = torch.optim.SGD(net.parameters(), lr=1e-3)  # expect: loss-stalls
decay = torch.optim.lr_scheduler.LinearLR(opt, 1.0, 0.0, total_iters=EPOCHS)
for _epoch in range(EPOCHS):
    for _k in range(BATCHES):
        x = torch.randn(16, 4)
        loss = (net(x) - x[:, :1] * 3).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        decay.step()
    print(f"{loss:.4f}")
