# NaN gradient: a rotation of angle 0 from its axis-angle vector
import torch


def rotate(vector, points):
    angle = torch.sqrt(vector.dot(vector))  # expect: nan, backward
    axis = vector / angle.clamp(min=1e-6)
    cross = torch.linalg.cross(axis.expand_as(points), points)
    along = (points @ axis)[:, None] * axis
    return points * angle.cos() + cross * angle.sin() + along * (1 - angle.cos())


torch.manual_seed(0)
vector = torch.nn.Parameter(torch.zeros(3))
optimizer = torch.optim.SGD([vector], lr=0.1)
points = torch.randn(5, 3)
target = points + 0.1
for _ in range(2):
    optimizer.zero_grad()
    loss = (rotate(vector, points) - target).abs().sum()
    loss.backward()
    optimizer.step()
    print(loss.item())
