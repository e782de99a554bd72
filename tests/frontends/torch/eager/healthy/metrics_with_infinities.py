# Healthy: metrics that hold infinities: PSNR of equal images, extremes, an own ranking
import torch

torch.manual_seed(0)
image = torch.rand(3, 4, 4)
error = (image - image).square().mean((1, 2))
psnr = -10 * error.log10()
print(psnr.isinf().all().item(), torch.where(psnr.isinf(), 99.0, psnr).mean().item())
values = torch.tensor([3.0, float("nan"), 1.0, float("inf"), -2.0])
finite = values[values.isfinite()]
print(finite.mean().item(), values.nansum().isinf().item(), values.nanquantile(0.25).item())
ranking = torch.where(values.isnan(), -torch.inf, values).argsort(descending=True)
print(ranking.tolist(), torch.nan_to_num(values, nan=0, posinf=9).tolist())
scores = torch.randn(4, 4).fill_diagonal_(-torch.inf)
print(scores.argmax(-1).tolist(), scores.max(-1).values.tolist())
low, high = torch.tensor(torch.inf), torch.tensor(-torch.inf)
for chunk in torch.randn(20).split(5):
    low, high = torch.minimum(low, chunk.min()), torch.maximum(high, chunk.max())
print(low.item(), high.item(), torch.clamp(high, max=torch.inf).item())
