# NaN gradient: an in-place logarithm of some columns that may be 0, replaced afterwards
import torch


def log_likelihood(weights, votes):
    shares = weights * votes
    total = shares.sum(-1, keepdim=True)
    known = shares > 0
    p = shares / total
    p[:, 1:].log_()  # expect: nan, backward
    return torch.where(known, p, 0.0).sum()


torch.manual_seed(0)
w = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.SGD([w], lr=0.1)
votes = torch.tensor([[1.0, 2.0, 0.0], [3.0, 1.0, 1.0]])
loss = -log_likelihood(w, votes)
loss.backward()
optimizer.step()
print(loss.item(), w.tolist())
