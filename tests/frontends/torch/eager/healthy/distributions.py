# Healthy: torch.distributions whose supports and log probabilities have infinities
import torch
from torch import distributions as D

torch.manual_seed(0)
logits = torch.tensor([0.5, -torch.inf, 1.0])
categorical = D.Categorical(logits=logits)
print(categorical.probs.tolist(), categorical.entropy().item())
print(D.Uniform(0.0, 1.0).log_prob(torch.tensor([0.5])).tolist())
scale = torch.tensor(1.5, requires_grad=True)
for made in (
    D.Normal(0.0, scale),
    D.Gamma(2.0, scale),
    D.Beta(scale, 2.0),
    D.LogNormal(0.0, scale),
    D.Exponential(scale),
    D.StudentT(scale + 2),
    D.Laplace(0.0, scale),
):
    x = made.rsample((3,))
    (g,) = torch.autograd.grad(made.log_prob(x).mean() + x.mean(), scale)
    print(type(made).__name__, g.item())
print(D.kl_divergence(D.Normal(0.0, 1.0), D.Normal(1.0, scale)).item())
