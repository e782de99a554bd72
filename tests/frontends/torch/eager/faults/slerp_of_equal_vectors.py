# NaN gradient: spherical interpolation of a vector with itself, repaired by torch.where
from dataclasses import dataclass
import torch


@dataclass
class Slerp:
    threshold: float = 0.9995

    def __call__(self, t, a, b):
        dot = (a * b).sum().clamp(-1, 1)
        omega = dot.acos()  # expect: inf, backward
        so = omega.sin() + 1e-9
        bent = ((1 - t) * omega).sin() / so * a + (t * omega).sin() / so * b
        flat = (1 - t) * a + t * b
        return torch.where(dot > self.threshold, flat, bent)


torch.manual_seed(0)
a = torch.nn.Parameter(torch.tensor([1.0, 0.0, 0.0]))
optimizer = torch.optim.Adam([a], lr=0.1)
loss = Slerp()(0.3, a, torch.tensor([1.0, 0.0, 0.0])).sum()
loss.backward()
optimizer.step()
print(loss.item(), a.tolist())
