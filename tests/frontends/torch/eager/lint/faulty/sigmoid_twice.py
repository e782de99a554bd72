import torch
from torch import nn

torch.manual_seed(35)
net = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1), nn.Sigmoid())
criterion = nn.BCEWithLogitsLoss()
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
for _step in range(40):
    x = torch.randn(32, 6)
    p = net(x).squeeze(1)  # expect: loss-stalls
    loss = criterion(p, (x[:, 0] > 0).float())
    opt.zero_grad()
    loss.backward()
    opt.step()
print(f"{loss:.4f}")
