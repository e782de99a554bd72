# Infinite gradient: latitude of the pole, asin(1)
import torch

point = torch.nn.Parameter(torch.tensor([[0.0, 0.0, 1.0], [0.6, 0.0, 0.8]]))
optimizer = torch.optim.SGD([point], lr=0.1)


def to_angles(p):
    latitude = torch.asin(p[:, 2])  # expect: inf, backward
    longitude = p[:, 0] + p[:, 1]
    return torch.stack([latitude, longitude], -1)


loss = to_angles(point).sum()
loss.backward()
optimizer.step()
print(point.tolist())
