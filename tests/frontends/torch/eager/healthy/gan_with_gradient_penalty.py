# Healthy: a GAN with a gradient penalty
import torch
from torch import nn

torch.manual_seed(0)
maker = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))
critic = nn.Sequential(nn.Linear(2, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))
of_maker = torch.optim.Adam(maker.parameters(), lr=1e-3, betas=(0.0, 0.9))
of_critic = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.0, 0.9))
for step in range(3):
    real, fake = torch.randn(8, 2) + 2, maker(torch.randn(8, 2))
    mix = torch.rand(8, 1)
    between = (mix * real + (1 - mix) * fake.detach()).requires_grad_()
    (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
    penalty = 10 * (slope.norm(2, dim=-1) - 1).square().mean()
    loss = critic(fake.detach()).mean() - critic(real).mean() + penalty
    of_critic.zero_grad()
    loss.backward()
    of_critic.step()
    of_maker.zero_grad()
    score = -critic(fake).mean()
    score.backward()
    of_maker.step()
    print(step, loss.item(), penalty.item(), score.item())
