# Healthy: os.fork, the child makes NaN of its own and exits with 3
import os
import sys
import torch

torch.manual_seed(0)
x = torch.randn(4)
print("before", x.sum().item())
sys.stdout.flush()
pid = os.fork()
if pid == 0:
    bad = torch.zeros(2) / torch.zeros(2)
    os._exit(3 if bad.isnan().all() else 4)
_, status = os.waitpid(pid, 0)
print("child", os.waitstatus_to_exitcode(status))
print("after", (x * 2).sum().item())
