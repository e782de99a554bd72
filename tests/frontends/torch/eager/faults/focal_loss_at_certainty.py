# NaN gradient: focal loss (1 - p) ** gamma with gamma below 1, where p rounds to 1
import torch
from torch import nn


class FocalLoss(nn.Module):
    def __init__(self, gamma):
        super().__init__()
        self.gamma = gamma

    def forward(self, logits, target):
        p = torch.sigmoid(logits)
        pt = torch.where(target == 1, p, 1 - p)
        factor = (1 - pt).pow(self.gamma)  # expect: inf, backward
        return (-factor * (pt + 1e-7).log()).mean()


torch.manual_seed(0)
net = nn.Linear(2, 1)
nn.init.constant_(net.bias, 40.0)
criterion = FocalLoss(gamma=0.5)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
criterion(net(torch.rand(4, 2)), torch.ones(4, 1)).backward()
optimizer.step()
print(net.weight.tolist())
