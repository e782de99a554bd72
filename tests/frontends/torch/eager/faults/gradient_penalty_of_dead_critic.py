# NaN gradient: gradient penalty (WGAN-GP), the critic's gradient is 0 and its length a root of 0
import torch
from torch import nn

torch.manual_seed(0)
critic = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
nn.init.constant_(critic[0].bias, -20.0)
optimizer = torch.optim.Adam(critic.parameters(), lr=1e-4, betas=(0.0, 0.9))


def penalty(real, fake):
    mix = torch.rand(real.shape[0], 1)
    between = (mix * real + (1 - mix) * fake).requires_grad_()
    score = critic(between).sum()
    (slope,) = torch.autograd.grad(score, between, create_graph=True)
    length = slope.pow(2).sum(-1).sqrt()  # expect: inf, backward
    return (length - 1).square().mean()


loss = penalty(torch.randn(4, 2), torch.randn(4, 2)) * 10
loss.backward()
optimizer.step()
print(loss.item(), critic[2].weight.isnan().any().item())
