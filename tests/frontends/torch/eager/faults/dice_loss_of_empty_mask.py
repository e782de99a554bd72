# NaN loss: dice loss where neither the prediction nor the target has the class
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Conv2d(1, 2, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
image = torch.randn(2, 1, 4, 4)
target = torch.zeros(2, 2, 4, 4)
target[:, 0] = 1


def dice(prediction, target):
    hard = (prediction > 2).float() * prediction
    overlap = (hard * target).sum((0, 2, 3))
    size = hard.sum((0, 2, 3)) + target.sum((0, 2, 3))
    return (1 - 2 * overlap / size).mean()  # expect: nan, forward


loss = dice(net(image).softmax(1), target)
loss.backward()
optimizer.step()
print(loss.item())
