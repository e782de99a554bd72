# NaN gradient: the forward runs in the main thread, its backward in another
import threading
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(2, 2, bias=False)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
x = torch.randn(4, 2)
x[1] = 0
y = net(x)
gap = y - x
length = gap.square().sum(-1).sqrt()  # expect: inf, backward
loss = length.mean()
thread = threading.Thread(target=loss.backward)
thread.start()
thread.join()
optimizer.step()
print(loss.item(), net.weight.tolist())
