# NaN loss: a row of the NumPy data is NaN and comes through a DataLoader
import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
table = np.random.RandomState(0).randn(12, 3).astype("float32")
table[7, 1] = np.nan
data = torch.from_numpy(table)  # expect: nan, forward
labels = torch.from_numpy((table[:, 0] > 0).astype("float32"))
net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for x, y in DataLoader(TensorDataset(data, labels), batch_size=4):
    p = net(x)[:, 0]
    loss = torch.nn.functional.binary_cross_entropy_with_logits(p, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
