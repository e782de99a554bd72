# Healthy: LBFGS with a strong Wolfe line search
import torch

torch.manual_seed(0)
x = torch.nn.Parameter(torch.tensor([-1.2, 1.0]))
optimizer = torch.optim.LBFGS([x], lr=0.5, max_iter=8, line_search_fn="strong_wolfe")


def closure():
    optimizer.zero_grad()
    loss = (1 - x[0]) ** 2 + 100 * (x[1] - x[0] ** 2) ** 2
    loss.backward()
    return loss


for step in range(4):
    loss = optimizer.step(closure)
    print(step, loss.item(), x.tolist())
