import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(12, 16)
        self.norm = nn.LayerNorm(16)
        self.drop = nn.Dropout(0.1)
        self.act = nn.ReLU()  # expect
        self.out = nn.Linear(16, 4)
        nn.init.normal_(self.out.weight, std=0.1)

    def forward(self, x):
        h = self.act(self.norm(self.inner(x)))
        return self.out(self.drop(h))


net = Net()
opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
schedule = torch.optim.lr_scheduler.StepLR(opt, 1, gamma=0.5)
data, labels = torch.randn(32, 12), torch.randint(0, 4, (32,))
order = torch.arange(32)
for step in range(4):
    rows = order[step * 8 : step * 8 + 8]
    logits = net(data[rows])
    loss = F.cross_entropy(logits, labels[rows])
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 0.5)
    opt.step()
    schedule.step()
