# Healthy: 0 / 0 of empty classes is repaired by nan_to_num and nanmean
import torch

torch.manual_seed(0)
truth = torch.tensor([0, 0, 1, 3])
guess = torch.tensor([0, 1, 1, 0])
hits = torch.zeros(4).index_add(0, truth, (truth == guess).float())
count = torch.bincount(truth, minlength=4)
recall = hits / count
print(recall.isnan().tolist(), recall.nanmean().item())
print(torch.nan_to_num(recall, nan=0.0).tolist())
weights = torch.nan_to_num(1.0 / count, posinf=0.0)
print(weights.tolist(), torch.nansum(recall).item(), recall[count > 0].mean().item())
net = torch.nn.Linear(2, 4)
x = torch.randn(4, 2)
loss = torch.nn.functional.cross_entropy(net(x), truth, weight=weights)
loss.backward()
torch.optim.SGD(net.parameters(), lr=0.1).step()
print(loss.item(), net.bias.tolist())
