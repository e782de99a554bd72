# Infinite result: solve_ex of a singular system, whose info nobody reads
import torch

torch.manual_seed(0)
w = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
features = torch.tensor([[1.0, 1.0], [1.0, 1.0]])
target = torch.tensor([[1.0], [3.0]])
optimizer = torch.optim.SGD([w], lr=0.1)
gram = (features * w).T @ (features * w) * torch.tensor([[1.0, 0.5], [2.0, 1.0]])
moment = (features * w).T @ target
solution, info = torch.linalg.solve_ex(gram, moment)  # expect: inf, forward
loss = solution.abs().mean()
loss.backward()
optimizer.step()
print(loss.item())
