# Healthy: torch.fx, a traced module is changed and interpreted
import torch
from torch import fx, nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)

    def forward(self, x):
        h = self.lin(x).relu()
        return torch.log(h + 1) + h


torch.manual_seed(0)
traced = fx.symbolic_trace(Net())
for node in traced.graph.nodes:
    if node.target is torch.log:
        node.target = torch.tanh
traced.recompile()
x = torch.randn(2, 3)
y = traced(x)
print([node.name for node in traced.graph.nodes])
print(y.tolist(), fx.Interpreter(traced).run(x).equal(y))
