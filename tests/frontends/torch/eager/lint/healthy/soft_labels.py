import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(27)
net = nn.Linear(5, 4)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
x, y = torch.randn(32, 5), torch.randint(0, 4, (32,))
for _step in range(20):
    share = torch.rand(1)
    hot = F.one_hot(y, 4).float()
    mixed = share * hot + (1 - share) * hot.roll(1, 0)
    loss = F.cross_entropy(net(x), mixed) + F.cross_entropy(net(x), y, label_smoothing=0.1)
    loss = loss + F.cross_entropy(net(x[0]), mixed[0]) + F.cross_entropy(net(x), hot)
    loss = loss + F.binary_cross_entropy(torch.sigmoid(net(x)), hot * 0.9 + 0.05)
    loss = loss + F.kl_div(net(x).log_softmax(1), mixed, reduction="batchmean")
    loss = loss + F.nll_loss(F.log_softmax(net(x), 1), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss:.6f}")
