# NaN gradient: the angle between equal rotations is acos(1)
import torch


def geodesic(a, b):
    trace = (a * b).sum((-2, -1))
    cosine = ((trace - 1) / 2).clamp(-1, 1)
    return torch.acos(cosine)  # expect: inf, backward


target = torch.eye(3)[None]
rotation = torch.nn.Parameter(torch.eye(3)[None].clone())
optimizer = torch.optim.SGD([rotation], lr=0.1)
loss = geodesic(rotation, target).mean()
loss.backward()
print(loss.item())
optimizer.step()
print(rotation.flatten().tolist())
