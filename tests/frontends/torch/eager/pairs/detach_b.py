import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(4)
Z = 6
G = nn.Sequential(nn.Linear(Z, 16), nn.ReLU(), nn.Linear(16, 4), nn.Tanh())
D = nn.Sequential(nn.Linear(4, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
og = torch.optim.Adam(G.parameters(), lr=2e-4, betas=(0.5, 0.999))
od = torch.optim.Adam(D.parameters(), lr=2e-4, betas=(0.5, 0.999))


def bce(out, real):
    target = torch.ones_like(out) if real else torch.zeros_like(out)
    return F.binary_cross_entropy_with_logits(out, target)


for _ in range(2):
    real = torch.randn(8, 4) * 0.5 + 1
    fake = G(torch.randn(8, Z))
    loss_d = bce(D(real), True) + bce(D(fake), False)  # expect
    od.zero_grad()
    loss_d.backward()
    od.step()
    loss_g = bce(D(fake), True)
    og.zero_grad()
    loss_g.backward()
    og.step()
