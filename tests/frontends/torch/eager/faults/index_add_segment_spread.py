# NaN gradient: spread of each segment by index_add, where a segment has one element
import torch

torch.manual_seed(0)
node = torch.nn.Parameter(torch.randn(5))
graph = torch.tensor([0, 0, 0, 1, 2])
optimizer = torch.optim.Adam([node], lr=0.01)
count = torch.zeros(3).index_add(0, graph, torch.ones(5))


def per_graph(x):
    mean = torch.zeros(3).index_add(0, graph, x) / count
    centred = x - mean[graph]
    variance = torch.zeros(3).index_add(0, graph, centred**2) / count
    return variance.sqrt()  # expect: inf, backward


loss = per_graph(node).sum()
loss.backward()
optimizer.step()
print(loss.item(), node.tolist())
