# NaN gradient: in bf16 a cosine rounds to 1, and the sine by hand is the root of 0
import torch
from torch import nn

torch.manual_seed(0)
head = nn.Linear(4, 1, bias=False)
nn.init.constant_(head.weight, 0.49995)
optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
with torch.autocast("cpu", dtype=torch.bfloat16):
    cosine = head(torch.full((3, 4), 0.5))
    sine = torch.sqrt(1 - cosine * cosine)  # expect: inf, backward
    margin = cosine * 0.9 - sine * 0.4
    loss = (margin - 1).square().mean()
loss.backward()
optimizer.step()
print(loss.item(), head.weight.tolist())
