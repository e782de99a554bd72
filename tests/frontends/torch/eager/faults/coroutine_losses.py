# NaN gradient: losses are gathered from coroutines, one of them takes the length of zeros
import asyncio
import torch

torch.manual_seed(0)
w = torch.nn.Parameter(torch.tensor([0.5, -0.5]))
optimizer = torch.optim.SGD([w], lr=0.1)


async def length(x):
    await asyncio.sleep(0)
    moved = w * x
    return moved.square().sum().sqrt()  # expect: inf, backward


async def main():
    parts = await asyncio.gather(length(torch.ones(2)), length(torch.zeros(2)))
    sum(parts).backward()
    optimizer.step()


asyncio.run(main())
print(w.tolist())
