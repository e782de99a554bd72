# NaN gradient: shards of a batch are scored in a pool of threads, one shard is empty of signal
from concurrent.futures import ThreadPoolExecutor
from functools import partial
import torch

torch.manual_seed(0)
w = torch.nn.Parameter(torch.randn(3))
optimizer = torch.optim.SGD([w], lr=0.1)


def score(weight, shard):
    energy = (shard * weight).square().mean()
    return torch.log(energy.sqrt() + 1)  # expect: inf, backward


shards = [torch.randn(2, 3), torch.zeros(2, 3), torch.randn(2, 3)]
with ThreadPoolExecutor(max_workers=1) as pool:
    parts = list(pool.map(partial(score, w), shards))
loss = torch.stack(parts).sum()
loss.backward()
optimizer.step()
print(w.tolist())
