# Healthy: attention with causal, padding and additive masks of -inf, no row is masked as a whole
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
qkv = nn.Linear(8, 24)
optimizer = torch.optim.AdamW(qkv.parameters(), lr=1e-2)
causal = torch.full((5, 5), float("-inf")).triu(1)
padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
for step in range(3):
    q, k, v = qkv(torch.randn(2, 5, 8)).chunk(3, -1)
    scores = q @ k.mT / 8**0.5 + causal
    scores = scores.masked_fill(padding[:, None, :], -torch.inf)
    out = scores.softmax(-1) @ v
    fused = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    loss = out.square().mean() + fused.abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
