# NaN gradient: a ratio where the divisor may be 0, chosen by torch.where
import torch


class Ratio(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(3))

    def loss(self, hits, tries):
        hits = hits * self.scale
        rate = hits / tries  # expect: nan, backward
        rate = torch.where(tries > 0, rate, torch.zeros(()))
        return (rate - 0.5).pow(2).mean()


m = Ratio()
optimizer = torch.optim.Adam(m.parameters())
loss = m.loss(torch.tensor([1.0, 0.0, 3.0]), torch.tensor([2.0, 0.0, 4.0]))
loss.backward()
optimizer.step()
print(loss.item(), m.scale.tolist())
