# Healthy: ignore_index, class weights of 0, logits of -inf for classes that cannot be
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
net = nn.Linear(4, 5)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
target = torch.tensor([0, -100, 2, 1, -100, 4])
impossible = torch.zeros(5).index_fill(0, torch.tensor([3]), -torch.inf)
for step in range(3):
    logits = net(torch.randn(6, 4))
    first = F.cross_entropy(logits + impossible, target)
    second = F.cross_entropy(logits, target, weight=torch.tensor([1.0, 0.0, 1.0, 1.0, 1.0]))
    p = (logits + impossible).softmax(-1)
    third = F.kl_div(F.log_softmax(logits, -1), p.detach(), reduction="batchmean")
    fourth = F.binary_cross_entropy(p[:, 0].round(), (p[:, 1] > 0.5).float())
    loss = first + second + third + fourth
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, first.item(), second.item(), third.item(), fourth.item())
