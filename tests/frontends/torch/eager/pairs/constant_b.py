import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(5)
BETA = 1.0  # expect


class VAE(nn.Module):
    def __init__(self, latent=4):
        super().__init__()
        self.enc = nn.Linear(10, 16)
        self.mu, self.logvar = nn.Linear(16, latent), nn.Linear(16, latent)
        self.dec = nn.Sequential(nn.Linear(latent, 16), nn.ReLU(), nn.Linear(16, 10))

    def sample(self, mu, logvar):
        std = torch.exp(0.5 * logvar)
        eps = torch.randn_like(std)
        return mu + eps * std

    def forward(self, x):
        h = torch.tanh(self.enc(x))
        mu, logvar = self.mu(h), self.logvar(h).clamp(-4, 4)
        z = self.sample(mu, logvar)
        return self.dec(z), mu, logvar


def elbo(out, x, mu, logvar):
    rec = F.mse_loss(out, x, reduction="sum") / x.shape[0]
    kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(1).mean()
    return rec + BETA * kl


vae = VAE()
ema = {k: v.clone() for k, v in vae.state_dict().items()}
opt = torch.optim.AdamW(vae.parameters(), lr=1e-3)
for _ in range(3):
    x = torch.rand(8, 10)
    out, mu, logvar = vae(x)
    loss = elbo(out, x, mu, logvar)
    opt.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_value_(vae.parameters(), 0.1)
    opt.step()
    with torch.no_grad():
        for k, v in vae.state_dict().items():
            ema[k].mul_(0.9).add_(v, alpha=0.1)
