# NaN gradient: torch.where hides log(0) in the forward but not in the backward
import torch

torch.manual_seed(0)
weight = torch.nn.Parameter(torch.tensor([0.0, 0.5, 2.0]))
optimizer = torch.optim.SGD([weight], lr=0.1)


def safe_log(x):
    return torch.where(
        x > 0,
        torch.log(x),  # expect: nan, backward
        torch.zeros_like(x),
    )


for _ in range(3):
    optimizer.zero_grad()
    loss = safe_log(weight).pow(2).sum()
    loss.backward()
    optimizer.step()
print(weight.tolist())
