# Healthy: torch.compile with the backends eager and aot_eager
import torch
from torch import nn

torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x):
        scores = self.lin(x) + torch.full((4, 4), float("-inf")).triu(1)
        return scores.softmax(-1).square().sum()


net = Net()
x = torch.randn(4, 4)
for backend in ("eager", "aot_eager"):
    torch._dynamo.reset()
    compiled = torch.compile(net, backend=backend, fullgraph=True)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(2):
        loss = compiled(x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(backend, loss.item())
