# NaN loss: contrastive loss (SimCLR) whose temperature has come down to 0
import torch
import torch.nn.functional as F

torch.manual_seed(0)
net = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
x = torch.randn(3, 4)
for step, temperature in enumerate([0.5, 0.1, 0.0]):
    a, b = F.normalize(net(x), dim=-1), F.normalize(net(x + 0.1), dim=-1)
    similarity = a @ b.T
    logits = similarity / temperature  # expect: inf, forward
    loss = F.cross_entropy(logits, torch.arange(3))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
