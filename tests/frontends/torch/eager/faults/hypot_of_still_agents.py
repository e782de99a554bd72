# NaN gradient: speed of an agent that stands still, by torch.hypot
import torch

torch.manual_seed(0)
track = torch.nn.Parameter(torch.tensor([[0.0, 0.0], [0.0, 0.0], [1.0, 2.0]]))
optimizer = torch.optim.SGD([track], lr=0.1)
velocity = track[1:] - track[:-1]
speed = torch.hypot(velocity[:, 0], velocity[:, 1])  # expect: nan, backward
excess = torch.relu(speed - 0.5)
loss = excess.mean()
loss.backward()
optimizer.step()
print(speed.tolist(), track.tolist())
