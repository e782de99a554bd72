# NaN gradient: xlogy(0, 0) is 0, its derivative is 0 / 0
import torch

torch.manual_seed(0)
logits = torch.nn.Parameter(torch.tensor([[200.0, 0.0], [0.0, 1.0]]))
target = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
optimizer = torch.optim.SGD([logits], lr=0.1)
for _ in range(2):
    optimizer.zero_grad()
    q = logits.softmax(-1)
    kl = torch.xlogy(target, target) - torch.xlogy(target, q)  # expect: nan, backward
    loss = kl.sum(-1).mean()
    loss.backward()
    optimizer.step()
    print(loss.item())
