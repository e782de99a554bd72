# NaN gradient: logsumexp of a row that is masked as a whole
import torch

torch.manual_seed(0)
net = torch.nn.Linear(3, 4)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
mask = torch.tensor([[True, True, False, True], [False, False, False, False]])
bias = torch.zeros(2, 4).masked_fill(~mask, float("-inf"))
scores = net(torch.randn(2, 3)) + bias
energy = torch.logsumexp(scores, dim=-1)  # expect: nan, backward
energy = energy.masked_fill(~mask.any(-1), 0.0)
loss = energy.sum()
loss.backward()
optimizer.step()
print(loss.item(), net.bias.tolist())
