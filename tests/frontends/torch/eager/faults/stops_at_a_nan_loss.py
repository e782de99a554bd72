# the script looks for the NaN itself, and ends
import math
import sys

import torch
from torch import nn


def train_one_epoch(model, optimizer, batches):
    for step, (x, y) in enumerate(batches):
        scores = model(x)
        scale = (y - y.mean()).abs().sum()
        loss = (scores - y / scale).pow(2).mean()  # expect: nan, forward
        if not torch.isfinite(loss):
            print(f"Loss is not finite in step {step}, stopping training")
            sys.exit(1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


torch.manual_seed(0)
model = nn.Linear(3, 1)
batches = [(torch.randn(4, 3), torch.randn(4, 1)) for _ in range(3)]
batches[2][1].zero_()
train_one_epoch(model, torch.optim.SGD(model.parameters(), lr=0.1), batches)
print(math.pi)
