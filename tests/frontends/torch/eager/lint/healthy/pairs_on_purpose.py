import torch
from torch import nn

torch.manual_seed(13)
scorer = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 1))
opt = torch.optim.Adam(scorer.parameters(), lr=1e-2)
for _k in range(25):
    x = torch.randn(12, 5)
    relevance = x[:, 0]
    s = scorer(x).squeeze(-1)
    column = s.unsqueeze(1)
    margins = column - s
    wanted = (relevance[:, None] - relevance[None]).sign()
    ranking = torch.relu(1 - wanted * margins).mean()
    anchors = s[:, None]
    to_data = (anchors - relevance).abs().min(1).values.mean()
    quantiles = torch.tensor([0.1, 0.5, 0.9])
    error = relevance[:, None] - scorer(x)
    pinball = torch.maximum(quantiles * error, (quantiles - 1) * error).mean()
    kernel = torch.exp(-((column - relevance.view(1, -1)) ** 2)).mean()
    loss = ranking + 0.1 * to_data + pinball - 0.1 * kernel
    opt.zero_grad()
    loss.backward()
    opt.step()
print(f"{loss:.4f}")
