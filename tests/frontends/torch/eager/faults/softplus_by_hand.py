# NaN gradient: log(1 + exp(-x)) by hand is inf, and its gradient inf / inf
import torch

torch.manual_seed(0)
w = torch.nn.Parameter(torch.tensor([1.0, -120.0]))
optimizer = torch.optim.SGD([w], lr=0.1)


def logistic(margin):
    e = torch.exp(-margin)  # expect: inf, forward
    return torch.log(1 + e)


loss = logistic(w * torch.tensor([1.0, 1.0]))
bounded = loss.clamp(max=50)
bounded.mean().backward()
optimizer.step()
print(bounded.tolist(), w.tolist())
