# NaN loss: cross entropy of a batch whose labels are all ignored
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
net = nn.Embedding(10, 10)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
batches = [torch.tensor([[1, 2, 3]]), torch.tensor([[4, 0, 0]])]
for tokens in batches:
    logits = net(tokens[:, :-1])
    labels = tokens[:, 1:].masked_fill(tokens[:, 1:] == 0, -100)
    loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())  # expect: nan, forward
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
