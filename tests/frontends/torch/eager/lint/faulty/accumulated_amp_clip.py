import torch
from torch import nn


class Fit:
    def __init__(self, net):
        self.net = net
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
        self.opt = torch.optim.AdamW(net.parameters(), lr=1e-3)

    def micro(self, x, y):
        with torch.autocast("cpu", torch.bfloat16):
            loss = nn.functional.mse_loss(self.net(x), y) / 4
        self.scaler.scale(loss).backward()
        return loss

    def apply(self):
        params = list(self.net.parameters())
        total = nn.utils.get_total_norm([p.grad for p in params])
        nn.utils.clip_grads_with_norm_(params, 1.0, total)  # expect: clip-before-unscale
        self.scaler.step(self.opt)
        self.scaler.update()
        self.opt.zero_grad()

    def run(self):
        for step in range(24):
            x = torch.randn(8, 4)
            loss = self.micro(x, x[:, :1])
            if step % 4 == 3:
                self.apply()
        print(f"{loss:.4f}")


torch.manual_seed(7)
Fit(nn.Sequential(nn.Linear(4, 16), nn.GELU(), nn.Linear(16, 1))).run()
