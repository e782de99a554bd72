# Healthy: quotients of zeros are repaired where isnan says so
import torch

a = torch.tensor([0.0, 1.0])
b = torch.tensor([0.0, 2.0])
r = a / b
fixed = torch.where(torch.isnan(r), torch.zeros_like(r), r)
r2 = a / b
r2[torch.isnan(r2)] = 0
r3 = (a / b).masked_fill(torch.isnan(a / b), 0)
print(fixed, r2, r3)
