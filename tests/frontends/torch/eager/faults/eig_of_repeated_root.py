# NaN gradient: eigenvectors of a transition matrix with equal eigenvalues
import torch

torch.manual_seed(0)
transition = torch.nn.Parameter(0.5 * torch.eye(3))
optimizer = torch.optim.SGD([transition], lr=0.1)
values, vectors = torch.linalg.eig(transition)  # expect: nan, backward
mode = vectors[:, 0].abs()
decay = values.abs().max()
loss = mode.sum() + decay
loss.backward()
optimizer.step()
print(loss.item(), transition.isnan().any().item())
