# Infinite loss: CTC where the target is longer than the input
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(6, 5)
ctc = nn.CTCLoss(blank=0)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
frames = torch.randn(3, 2, 6)
log_probs = net(frames).log_softmax(-1)
targets = torch.tensor([[1, 2, 3, 4], [1, 2, 0, 0]])
lengths = torch.tensor([3, 3]), torch.tensor([4, 2])
loss = ctc(log_probs, targets, *lengths)  # expect: inf, forward
loss.backward()
optimizer.step()
print(loss.item(), net.bias.isnan().any().item())
