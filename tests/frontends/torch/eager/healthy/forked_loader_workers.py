# Healthy: a DataLoader with two forked workers, whose dataset masks with NaN and repairs it
import torch
from torch.utils.data import DataLoader, Dataset


class Gaps(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, k):
        x = torch.arange(4.0) + k
        x[k % 4] = float("nan")
        return torch.nan_to_num(x, nan=0.0), torch.tensor(float(k))


if __name__ == "__main__":
    torch.manual_seed(0)
    net = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    loader = DataLoader(Gaps(), batch_size=4, num_workers=2, multiprocessing_context="fork")
    for x, y in loader:
        loss = (net(x)[:, 0] - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(loss.item())
