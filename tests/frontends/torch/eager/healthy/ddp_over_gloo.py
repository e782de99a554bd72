# Healthy: DistributedDataParallel over gloo with two spawned ranks
import os
import tempfile
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def train(rank, meeting, out):
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    torch.manual_seed(0)
    net = DistributedDataParallel(nn.Linear(3, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(3):
        x = torch.full((4, 3), float(rank + step))
        loss = (net(x) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    worst = torch.tensor(float("-inf")) if rank else loss.detach()
    dist.all_reduce(worst, op=dist.ReduceOp.MAX)
    if rank == 0:
        torch.save((worst, net.module.weight.detach()), out)
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "out.pt")
        mp.spawn(train, args=(os.path.join(folder, "meeting"), out), nprocs=2)
        worst, weight = torch.load(out)
        print(worst.item(), weight.tolist())
