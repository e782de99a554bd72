# NaN gradient: a distance is taken in a worker thread, its backward runs in the main one
import threading
import torch

torch.manual_seed(0)
anchor = torch.nn.Parameter(torch.zeros(3))
optimizer = torch.optim.SGD([anchor], lr=0.1)
results = {}


def work(name, points):
    gap = points - anchor
    results[name] = gap.pow(2).sum(-1).sqrt().mean()  # expect: inf, backward


threads = [
    threading.Thread(target=work, args=("near", torch.zeros(2, 3))),
]
for t in threads:
    t.start()
    t.join()
results["near"].backward()
optimizer.step()
print(anchor.tolist())
