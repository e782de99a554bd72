# Healthy: norms, distances, spreads, products and angles at 0, whose derivatives PyTorch defines
import torch

torch.manual_seed(0)
zero = torch.zeros(3, requires_grad=True)
pair = torch.ones(2, 3, requires_grad=True)
results = {
    "norm": zero.norm(),
    "half": torch.linalg.vector_norm(zero, 0.5),
    "largest": zero.norm(float("inf")),
    "std": zero.std(),
    "atan2": torch.atan2(zero, zero * 2).sum(),
    "prod": zero.prod(),
    "cumprod": torch.cumprod(zero, 0).sum(),
    "cdist": torch.cdist(pair, pair).sum(),
    "pdist": torch.pdist(pair).sum(),
    "complex": torch.complex(zero, zero).abs().sum(),
    "angle": torch.complex(zero, zero).angle().sum(),
    "normalize": torch.nn.functional.normalize(zero, dim=0).sum(),
    "cosine": torch.cosine_similarity(zero, pair[0], dim=0),
    "xlogy": torch.xlogy(zero, pair[0]).sum(),
    "sinc": torch.sinc(zero).sum(),
    "pow": zero.pow(2.5).sum(),
}
for name, value in results.items():
    leaf = pair if name.endswith("dist") else zero
    (g,) = torch.autograd.grad(value, leaf, retain_graph=True)
    print(name, value.item(), g.flatten().tolist()[:3])
