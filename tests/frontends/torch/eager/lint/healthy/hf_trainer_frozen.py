import torch
from torch import nn
from torch.utils.data import DataLoader


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(
            [
                nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1))
                for _ in range(2)
            ]
        )

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class ForClassification(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = Backbone()
        self.base.requires_grad_(False)
        self.head = nn.Linear(8, 3)

    def train(self, mode=True):
        super().train(mode)
        self.base.eval()
        return self

    def forward(self, x, labels=None):
        with torch.no_grad():
            h = self.base(x)
        logits = self.head(h)
        loss = nn.functional.cross_entropy(logits, labels) if labels is not None else None
        return {"loss": loss, "logits": logits}


class Trainer:
    def __init__(self, model, rows):
        self.model, self.rows = model, rows
        self.opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
        self.sched = torch.optim.lr_scheduler.LambdaLR(self.opt, self.rate)

    def rate(self, step):
        return step / 5 if step < 5 else max(0.0, (40 - step) / 35)

    def evaluate(self):
        self.model.eval()
        with torch.no_grad():
            out = [self.model(x)["logits"].argmax(1) == y for x, y in DataLoader(self.rows, 16)]
        return torch.cat(out).float().mean().item()

    def train(self):
        for _epoch in range(10):
            self.model.train()
            for x, y in DataLoader(self.rows, 16, shuffle=True):
                loss = self.model(x, labels=y)["loss"]
                self.opt.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.opt.step()
                self.sched.step()
            print(f"{loss:.4f} {self.evaluate():.3f}")


torch.manual_seed(0)
x = torch.randn(64, 8)
Trainer(ForClassification(), list(zip(x, x[:, :3].argmax(1), strict=False))).train()
