# Healthy: CTC with zero_infinity, a target that is too long counts as 0
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(4, 5)
ctc = nn.CTCLoss(zero_infinity=True)
optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
targets = torch.tensor([[1, 1, 1, 1], [1, 2, 0, 0]])
for step in range(3):
    log_probs = net(torch.randn(5, 2, 4)).log_softmax(-1)
    loss = ctc(log_probs, targets, torch.tensor([5, 5]), torch.tensor([4, 2]))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
