# Healthy: k-means, the best distance starts at inf
import torch

torch.manual_seed(0)
points = torch.cat([torch.randn(10, 2), torch.randn(10, 2) + 4])
centres = points[[0, 15]].clone()
for _ in range(3):
    best = torch.full((20,), float("inf"))
    label = torch.zeros(20, dtype=torch.long)
    for k, centre in enumerate(centres):
        distance = (points - centre).square().sum(-1)
        closer = distance < best
        best = torch.where(closer, distance, best)
        label[closer] = k
    centres = torch.stack([points[label == k].mean(0) for k in range(2)])
    print(best.sum().item(), centres.tolist())
