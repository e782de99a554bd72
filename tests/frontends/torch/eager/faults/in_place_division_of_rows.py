# NaN gradient: attention weights are divided in place by a sum that was clamped too late
import torch

torch.manual_seed(0)
score = torch.nn.Parameter(torch.randn(3, 4))
optimizer = torch.optim.SGD([score], lr=0.1)
keep = torch.tensor([True, True, False])
weights = score.exp() * keep[:, None]
rows = weights.sum(-1, keepdim=True)
weights.div_(rows)  # expect: nan, backward
out = torch.where(keep[:, None], weights, 0.0)
loss = out.square().sum()
loss.backward()
optimizer.step()
print(loss.item(), score.tolist())
