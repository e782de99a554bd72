# NaN gradient: spectral flatness, the geometric mean of a power spectrum with zeros
import torch

torch.manual_seed(0)
volume = torch.nn.Parameter(torch.ones(()))
optimizer = torch.optim.Adam([volume], lr=0.1)
tone = torch.tensor([1.0, -1.0]).repeat(8)


def flatness(signal):
    power = torch.fft.rfft(signal).abs().square()
    geometric = (
        power
        .log()  # expect: nan, backward
        .mean()
        .exp()
    )
    return geometric / power.mean()


loss = flatness(tone * volume)
loss.backward()
optimizer.step()
print(loss.item(), volume.item())
