# Infinite loss: a VAE's exp(log_var) overflows in its KL term
import torch
from torch import nn


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode, self.decode = nn.Linear(4, 4), nn.Linear(2, 4)
        nn.init.constant_(self.encode.bias, 100.0)

    def loss(self, x):
        mean, log_var = self.encode(x).chunk(2, -1)
        z = mean + torch.randn_like(mean) * (0.5 * log_var).exp()
        reconstruction = (self.decode(z) - x).abs().mean()
        kl = -0.5 * (1 + log_var - mean.square() - log_var.exp()).sum(-1)  # expect: inf, forward
        return reconstruction + kl.mean()


torch.manual_seed(0)
m = VAE()
loss = m.loss(torch.randn(3, 4))
loss.backward()
torch.optim.Adam(m.parameters()).step()
print(loss.item())
