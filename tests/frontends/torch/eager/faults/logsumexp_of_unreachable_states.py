# NaN gradient: forward algorithm, two states that nothing reaches
import torch

torch.manual_seed(0)
emission = torch.nn.Parameter(torch.randn(5, 4))
optimizer = torch.optim.Adam([emission], lr=0.1)
alpha = torch.full((4,), -torch.inf)
alpha[0] = 0.0
for t in range(5):
    stay = alpha
    move = torch.cat([torch.full((1,), -torch.inf), alpha[:-1]])
    alpha = torch.logsumexp(torch.stack([stay, move]), 0)  # expect: nan, backward
    alpha = alpha + emission[t]
loss = -alpha[-1]
loss.backward()
optimizer.step()
print(loss.item(), emission.isnan().any().item())
