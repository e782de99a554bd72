# Healthy: inference_mode and no_grad, NaN in scratch memory that is overwritten
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.AdaptiveMaxPool2d(2))
net.eval()
results = torch.full((3, 8), float("nan"))
with torch.inference_mode():
    for k in range(3):
        results[k] = net(torch.randn(1, 1, 6, 6)).flatten()
print(results.isnan().any().item(), results.sum().item())
with torch.no_grad():
    worst = torch.tensor(-torch.inf)
    for row in results:
        worst = torch.maximum(worst, row.max())
print(worst.item(), results.is_inference())
