# Infinite gradient: the second derivative of x ** 1.5 at 0, in a smoothness penalty
import torch

torch.manual_seed(0)
scale = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.SGD([scale], lr=0.1)


def potential(x):
    stretched = x * scale
    return stretched.pow(1.5).sum()  # expect: inf, backward


x = torch.tensor([0.0, 1.0, 2.0], requires_grad=True)
energy = potential(x)
(force,) = torch.autograd.grad(energy, x, create_graph=True)
loss = energy + force.sum()
loss.backward()
optimizer.step()
print(loss.item(), scale.tolist())
