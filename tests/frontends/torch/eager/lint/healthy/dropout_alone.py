import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(24)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 64), nn.Linear(64, 3)

    def forward(self, x):
        h = F.dropout(torch.relu(self.a(x)), 0.7, self.training)
        logits = self.b(h)
        return logits if self.training else logits.softmax(1)


net = Net()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
x, y = torch.randn(60, 4), torch.randint(0, 3, (60,))
for _step in range(30):
    loss = F.cross_entropy(net.train()(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss:.6f} {net.eval()(x).max().item():.6f}")
