# NaN parameter: a learning rate schedule divides by 0 at the end of its warmup
import numpy as np
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(2, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
np.seterr(divide="ignore")
schedule = torch.optim.lr_scheduler.LambdaLR(
    optimizer, lambda epoch: float(1 / np.float64(3 - epoch))
)
for epoch in range(5):
    optimizer.zero_grad()
    loss = torch.sigmoid(net(torch.ones(4, 2))).mean()
    loss.backward()
    optimizer.step()  # expect: inf, update
    schedule.step()
print(net.weight.tolist())
