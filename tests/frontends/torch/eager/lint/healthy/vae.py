import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(34)


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc, self.dec = nn.Linear(10, 8), nn.Linear(4, 10)

    def forward(self, x):
        mean, log_var = self.enc(x).chunk(2, 1)
        z = mean + torch.randn_like(mean) * (log_var / 2).exp() if self.training else mean
        return self.dec(z), mean, log_var


net = VAE()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
x = torch.rand(32, 10)
for _step in range(25):
    logits, mean, log_var = net(x)
    loss = F.binary_cross_entropy_with_logits(logits, x, reduction="sum") / 32
    loss = loss - 0.5 * (1 + log_var - mean.square() - log_var.exp()).sum(1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss:.6f}")
