# Healthy: pickles of a model, an optimizer and a class of the script
import io
import pickle
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 2)
        self.best = float("inf")

    def forward(self, x):
        return self.lin(x)


torch.manual_seed(0)
net = Net()
optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
x = torch.randn(4, 3)
for k in range(3):
    net = pickle.loads(pickle.dumps(net))
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    file.seek(0)
    optimizer.load_state_dict(torch.load(file))
    loss = net(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(k, loss.item(), net.best, type(net).__module__)
