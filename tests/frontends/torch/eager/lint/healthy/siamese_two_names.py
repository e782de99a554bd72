import torch
from torch import nn


class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4))
        self.left = self.right = self.encoder

    def forward(self, a, b):
        return (self.left(a) - self.right(b)).norm(dim=1)


class Actor(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.body, self.out = body, nn.Linear(4, 2)


torch.manual_seed(18)
m = Siamese()
actor, critic = Actor(m.encoder), Actor(m.encoder)
act = nn.ReLU()
rnn_like = nn.Sequential(nn.Linear(4, 4), act, nn.Linear(4, 4), act)
opt = torch.optim.Adam(
    [*m.parameters(), *actor.out.parameters(), *critic.out.parameters(), *rnn_like.parameters()]
)
for _k in range(10):
    a, b = torch.randn(16, 6), torch.randn(16, 6)
    same = (torch.rand(16) > 0.5).float()
    d = m(a, torch.where(same[:, None] > 0, a + 0.1 * b, b))
    c = actor.out(actor.body(a)).mean() ** 2 + critic.out(rnn_like(critic.body(b))).mean() ** 2
    loss = (same * d**2 + (1 - same) * torch.relu(1 - d) ** 2).mean() + c
    opt.zero_grad()
    loss.backward()
    opt.step()
print(f"{loss:.4f}")
