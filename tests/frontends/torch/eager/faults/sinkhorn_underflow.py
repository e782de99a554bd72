# NaN loss: Sinkhorn iterations with a small epsilon, whose kernel underflows to 0
import torch


def sinkhorn(cost, epsilon, rounds=5):
    kernel = torch.exp(-cost / epsilon)
    n, m = cost.shape
    u, v = torch.ones(n) / n, torch.ones(m) / m
    for _ in range(rounds):
        u = (1 / n) / (kernel @ v)  # expect: inf, forward
        v = (1 / m) / (kernel.T @ u)
    plan = u[:, None] * kernel * v[None, :]
    return (plan * cost).sum()


torch.manual_seed(0)
points = torch.nn.Parameter(torch.randn(4, 2) + 5)
optimizer = torch.optim.SGD([points], lr=0.1)
cost = (points[:, None] - torch.randn(3, 2)[None]).square().sum(-1)
loss = sinkhorn(cost, epsilon=0.05)
loss.backward()
optimizer.step()
print(loss.item())
