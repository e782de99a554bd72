# NaN loss: KL divergence of a probability that is 0
import torch
import torch.nn.functional as F


class Distill:
    def __init__(self, heat):
        self.heat = heat

    def __call__(self, student, teacher):
        p = F.softmax(teacher / self.heat, -1)
        log_q = F.log_softmax(student / self.heat, -1)
        log_p = p.log()  # expect: inf, forward
        return (p * (log_p - log_q)).sum(-1).mean()


torch.manual_seed(0)
w = torch.nn.Parameter(torch.randn(2, 3))
optimizer = torch.optim.SGD([w], lr=0.1)
loss = Distill(heat=0.5)(w, torch.tensor([[90.0, 0.0, 1.0], [1.0, 2.0, 3.0]]))
loss.backward()
optimizer.step()
print(loss.item())
