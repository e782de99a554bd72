import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(1)


def block(i, o, stride=1):
    return nn.Sequential(
        nn.Conv2d(i, o, 3, stride=stride, padding=1, bias=False),
        nn.BatchNorm2d(o, momentum=0.01),  # expect
        nn.SiLU(),
    )


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.mid = block(3, 8), block(8, 16, 2)
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Linear(16, 5)

    def forward(self, x):
        x = self.pool(self.mid(self.stem(x)))
        x = x.mean((2, 3))
        return self.head(x)


net = Net()
for m in net.modules():
    if isinstance(m, nn.Conv2d):
        nn.init.kaiming_normal_(m.weight, nonlinearity="relu")
images = torch.rand(24, 3, 12, 12)
labels = torch.randint(0, 5, (24,))
mean = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
images = (images - mean) / 0.25
opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=True)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=3)
for k in range(3):
    xb, yb = images[k * 8 : (k + 1) * 8], labels[k * 8 : (k + 1) * 8]
    xb = F.pad(xb, (1, 1, 1, 1), mode="reflect")
    out = net(xb)
    loss = F.cross_entropy(out, yb)
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
net.eval()
with torch.no_grad():
    acc = (net(images).argmax(1) == labels).float().mean()
print(acc)
