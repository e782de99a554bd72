# Healthy: missing labels are NaN and filtered out of the loss
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
labels = np.random.RandomState(0).randn(12, 2).astype("float32")
labels[::3, 1] = np.nan
data = TensorDataset(torch.randn(12, 3), torch.from_numpy(labels))
net = nn.Linear(3, 2)
optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
for epoch in range(2):
    for x, y in DataLoader(data, batch_size=6):
        known = ~y.isnan()
        loss = (net(x)[known] - y[known]).square().mean()
        filled = torch.where(known, y, 0.0)
        second = ((net(x) - filled).abs() * known).sum() / known.sum()
        optimizer.zero_grad()
        (loss + second).backward()
        optimizer.step()
    print(epoch, loss.item(), second.item(), torch.nanmean(y).item())
