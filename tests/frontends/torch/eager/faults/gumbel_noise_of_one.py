# NaN loss: Gumbel noise of a uniform number that is exactly 1
import torch

torch.manual_seed(0)
logits = torch.nn.Parameter(torch.randn(4))
optimizer = torch.optim.SGD([logits], lr=0.1)
u = torch.rand(4)
u[2] = 1.0  # in f16 and bf16 this happens
exponential = -torch.log(u)
noise = -torch.log(exponential)  # expect: inf, forward
soft = torch.softmax((logits + noise) / 0.5, -1)
loss = (soft * torch.arange(4.0)).sum()
loss.backward()
optimizer.step()
print(loss.item())
