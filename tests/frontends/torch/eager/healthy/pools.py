# Healthy: a pool of threads and a pool of forked processes
import multiprocessing
from concurrent.futures import ThreadPoolExecutor
import torch


def nearest(k):
    generator = torch.Generator().manual_seed(k)
    points = torch.randn(6, 2, generator=generator)
    distances = torch.cdist(points, points).fill_diagonal_(float("inf"))
    return distances.min(-1).values.sum().item()


if __name__ == "__main__":
    torch.set_num_threads(1)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        forked = pool.map(nearest, range(4))
    with ThreadPoolExecutor(2) as pool:
        threaded = list(pool.map(nearest, range(4)))
    print(forked == threaded, threaded)
