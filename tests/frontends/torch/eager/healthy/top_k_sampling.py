# Healthy: top-k and top-p sampling write -inf into logits
import torch

torch.manual_seed(0)
generator = torch.Generator().manual_seed(1)
table = torch.randn(10, 10)


def filtered(logits, k, p):
    threshold = logits.topk(k).values[..., -1, None]
    logits = logits.masked_fill(logits < threshold, -torch.inf)
    ordered, index = logits.sort(descending=True)
    mass = ordered.softmax(-1).cumsum(-1)
    drop = (mass - ordered.softmax(-1)) > p
    return logits.scatter(-1, index, ordered.masked_fill(drop, -torch.inf))


token, text = torch.tensor([3]), []
for _ in range(8):
    probs = filtered(table[token], 5, 0.9).softmax(-1)
    token = torch.multinomial(probs, 1, generator=generator)[:, 0]
    text.append(token.item())
print(text)
