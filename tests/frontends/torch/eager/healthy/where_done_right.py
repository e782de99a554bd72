# Healthy: torch.where with a safe input as well (the "double where")
import torch

torch.manual_seed(0)
w = torch.nn.Parameter(torch.tensor([-1.0, 0.0, 2.0]))
optimizer = torch.optim.SGD([w], lr=0.1)
for _ in range(3):
    safe = torch.where(w > 0, w, 1.0)
    root = torch.where(w > 0, safe.sqrt(), 0.0)
    log = torch.where(w > 0, safe.log(), -1.0)
    ratio = torch.where(w != 0, torch.sin(w) / torch.where(w != 0, w, 1.0), 1.0)
    loss = root.sum() + log.sum() + ratio.sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item(), w.tolist())
unused = torch.where(w > 0, torch.log(w.detach()), 0.0)
print(unused.tolist())
