# NaN gradient: cosine similarity by hand with a clamped length, where a row is 0
import torch

torch.manual_seed(0)
encoder = torch.nn.Linear(4, 4, bias=False)
optimizer = torch.optim.AdamW(encoder.parameters(), lr=1e-3)


def cosine(a, b, eps=1e-6):
    dot = (a * b).sum(-1)
    lengths = ((a * a).sum(-1) * (b * b).sum(-1)).sqrt()  # expect: nan, backward
    return dot / lengths.clamp(min=eps)


words = torch.randn(3, 4)
words[0] = 0
loss = 1 - cosine(encoder(words), torch.ones(3, 4)).mean()
loss.backward()
optimizer.step()
print(encoder.weight.isnan().sum().item())
