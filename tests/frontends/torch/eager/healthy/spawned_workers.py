# Healthy: processes that are spawned, each returns what it computed
import torch
import torch.multiprocessing as mp


def work(rank, queue):
    torch.manual_seed(rank)
    best = torch.tensor(float("inf"))
    for _ in range(5):
        best = torch.minimum(best, torch.randn(3).norm())
    queue.put((rank, best.item()))


if __name__ == "__main__":
    context = mp.get_context("spawn")
    queue = context.SimpleQueue()
    processes = [context.Process(target=work, args=(rank, queue)) for rank in range(2)]
    for p in processes:
        p.start()
    for p in processes:
        p.join()
    print(sorted(queue.get() for _ in processes), [p.exitcode for p in processes])
