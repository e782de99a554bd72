# Healthy: beam search, finished and impossible beams have the score -inf
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Embedding(7, 8), nn.Linear(8, 7))
beams, end = 3, 0
sequences = torch.full((beams, 1), 1)
scores = torch.full((beams,), -torch.inf)
scores[0] = 0.0
with torch.no_grad():
    for _ in range(5):
        log_probs = net(sequences[:, -1]).log_softmax(-1)
        done = sequences[:, -1] == end
        log_probs[done] = -torch.inf
        log_probs[done, end] = 0.0
        total = (scores[:, None] + log_probs).flatten()
        scores, index = total.topk(beams)
        sequences = torch.cat([sequences[index // 7], (index % 7)[:, None]], 1)
print(sequences.tolist())
print(scores.tolist())
