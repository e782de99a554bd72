# NaN result: bias correction of a moving average before its first step, 0 / 0
import torch


class Average:
    def __init__(self, decay):
        self.decay, self.mean, self.count = torch.tensor(decay), torch.zeros(2), torch.tensor(0)

    def update(self, x):
        self.mean.lerp_(x, 1 - self.decay)
        self.count += 1

    def value(self):
        correction = 1 - self.decay**self.count
        return self.mean / correction  # expect: nan, forward


torch.manual_seed(0)
w = torch.nn.Parameter(torch.randn(2))
optimizer, average = torch.optim.SGD([w], lr=0.1), Average(0.9)
loss = (w - average.value()).square().sum()
loss.backward()
optimizer.step()
average.update(w.detach())
print(loss.item())
