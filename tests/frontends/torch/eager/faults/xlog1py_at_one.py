# NaN gradient: xlog1py(0, -1) is 0, but not its derivative
import torch


def bernoulli(p, y):
    positive = torch.special.xlogy(y, p)
    negative = torch.special.xlog1py(1 - y, -p)  # expect: nan, backward
    return -(positive + negative).mean()


torch.manual_seed(0)
logit = torch.nn.Parameter(torch.tensor([100.0, 0.3]))
optimizer = torch.optim.SGD([logit], lr=0.1)
p = torch.sigmoid(logit)
loss = bernoulli(p, torch.tensor([1.0, 0.0]))
loss.backward()
optimizer.step()
print(loss.item(), logit.tolist())
