# NaN gradient: infinite CTC losses are filtered, but the derivative is taken all the same
import torch
import torch.nn.functional as F

torch.manual_seed(0)
net = torch.nn.Linear(6, 5)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
frames = torch.randn(3, 2, 6)
logits = net(frames)
log_probs = logits.log_softmax(-1)
targets = torch.tensor([[1, 1, 1], [1, 2, 0]])
sizes = torch.tensor([3, 3]), torch.tensor([3, 2])
each = F.ctc_loss(log_probs, targets, *sizes, reduction="none")  # expect: inf, forward
finite = each.masked_fill(each.isinf(), 0.0)
loss = finite.sum()
loss.backward()
optimizer.step()
print(finite.tolist())
