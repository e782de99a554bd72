"""Scripts under debugpy, with and without the past recorded: a step or an iteration in µs.

python benchmarks/recording_python.py KIND plain|debugpy|past
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from harness import environment

LOOP = """
def work(n=1_000_000):
    s = 0
    for i in range(n):
        a = i * 2
        b = a + 1
        if b % 3:
            s += b
        c = [a, b]
    return n
"""
PREPARE = """
WORDS = "the quick brown fox jumps over the lazy dog and a tensor of many dims is seen".split()

def rows(n):
    for k in range(n):
        words = (WORDS[(j * 7 + k * 3) % len(WORDS)] for j in range(5 + k % 11))
        yield {"text": " ".join(words) + f" w{k % 300}", "label": k % 3}

def work(n=20_000):
    vocabulary, counts, out = {}, {}, []
    for k, row in enumerate(rows(n)):
        tokens = row["text"].strip().lower().split(" ")
        ids = []
        for token in tokens:
            if token not in vocabulary:
                vocabulary[token] = len(vocabulary)
            ids.append(vocabulary[token])
            counts[token] = counts.get(token, 0) + 1
        ids = ids[:12]
        mask = [1] * len(ids) + [0] * (12 - len(ids))
        item = {"ids": ids, "mask": mask, "label": row["label"], "key": f"{tokens[0]}-{k}"}
        out.append(item)
    return n
"""
LENET = """
import torch
from torch import nn

class LeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1, self.c2 = nn.Conv2d(1, 6, 5, padding=2), nn.Conv2d(6, 16, 5)
        self.f1, self.f2, self.f3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x):
        h = self.c1(x)
        h = torch.relu(h)
        h = nn.functional.max_pool2d(h, 2)
        h = self.c2(h)
        h = torch.relu(h)
        h = nn.functional.max_pool2d(h, 2)
        h = h.flatten(1)
        h = torch.relu(self.f1(h))
        h = torch.relu(self.f2(h))
        return self.f3(h)

def work(n=60):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = LeNet()
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    x, y = torch.randn(64, 1, 28, 28), torch.randint(0, 10, (64,))
    for step in range(n):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step_done()
    return n
"""
GPT = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads = heads

    def forward(self, x):
        b, t, w = x.shape
        q, k, v = self.attention(self.n1(x)).split(w, 2)
        q, k, v = (a.view(b, t, self.heads, -1).transpose(1, 2) for a in (q, k, v))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, w))
        h = nn.functional.gelu(self.up(self.n2(x)))
        return x + self.down(h)

class GPT(nn.Module):
    def __init__(self, words=4096, width=256, length=64, layers=6):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList([Block(width, 4) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, ids):
        places = torch.arange(ids.shape[1])
        x = self.words(ids) + self.places(places)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

def work(n=10):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters())
    ids = torch.randint(0, 4096, (4, 65))
    for step in range(n):
        logits = model(ids[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step_done()
    return n
"""
KINDS = {"loop": LOOP, "prepare": PREPARE, "lenet": LENET, "gpt": GPT}
STOP = "\ndef elsewhere():\n    return 1\n"  # a breakpoint is here, which is never reached

MAIN = """
import sys, time
folder, mode = sys.argv[1:]
sys.path.insert(0, folder)
past = None
if mode == "past":
    from opstep.debuggee.past.past import Past
    past = Past.begin([folder])
import timed
timed.step_done = past.step_done if past else lambda: None
if past and "torch" in sys.modules:
    past.watch_writes()
timed.work(3)
start = time.process_time()
n = timed.work()
print(f"took {(time.process_time() - start) / n * 1e6:.4f} us", flush=True)
"""


def measured(kind: str, mode: str) -> float:
    """µs for a unit of work."""
    with tempfile.TemporaryDirectory() as folder:
        main, work = Path(folder) / "main" / "main.py", Path(folder) / "user" / "timed.py"
        for path, text in ((main, MAIN), (work, KINDS[kind] + STOP)):
            path.parent.mkdir()
            path.write_text(text)
        arguments = [str(work.parent), mode]
        if mode == "plain":
            words = [sys.executable, str(main), *arguments]
            said = subprocess.run(words, capture_output=True, text=True, env=environment())
            output = said.stdout + said.stderr
        else:
            line = (KINDS[kind] + STOP).splitlines().index("    return 1") + 1
            output = Debugpy().run(str(main), arguments, str(work), line)
    found = re.search(r"took ([\d.]+) us", output)
    if not found:
        raise RuntimeError(output[-600:])
    return float(found[1])


class Debugpy:
    """A client of its adapter, just enough to run a program with a breakpoint."""

    def __init__(self):
        pipe = subprocess.PIPE
        words = [sys.executable, "-m", "debugpy.adapter"]
        self._adapter = subprocess.Popen(words, stdin=pipe, stdout=pipe, env=environment())
        self._number, self._output = 0, ""
        self._initialized, self._ended = threading.Event(), threading.Event()
        threading.Thread(target=self._read, daemon=True).start()

    def run(self, program: str, arguments: list[str], path: str, line: int) -> str:
        self._send("initialize", adapterID="python", clientID="benchmark")
        env = {"PYTHONPATH": environment()["PYTHONPATH"]}
        env |= {k: v for k, v in os.environ.items() if k.startswith("OPSTEP_")}
        self._send(
            "launch", program=program, args=arguments, console="internalConsole", env=env,
            redirectOutput=True, python=[sys.executable],
        )  # fmt: skip
        self._initialized.wait(60)
        self._send("setBreakpoints", source={"path": path}, breakpoints=[{"line": line}])
        self._send("setExceptionBreakpoints", filters=["uncaught"])
        self._send("configurationDone")
        self._ended.wait(600)
        assert self._adapter.stdin
        self._adapter.stdin.close()
        self._adapter.wait(30)
        return self._output

    def _send(self, command: str, **arguments: Any) -> None:
        self._number += 1
        message = {"type": "request", "seq": self._number, "command": command}
        body = json.dumps(message | {"arguments": arguments}).encode()
        assert self._adapter.stdin
        self._adapter.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self._adapter.stdin.flush()

    def _read(self) -> None:
        stream = self._adapter.stdout
        assert stream
        while header := stream.readline():
            stream.readline()
            message = json.loads(stream.read(int(header.split(b":")[1])))
            event, body = message.get("event"), message.get("body") or {}
            if event == "output" and body.get("category") in ("stdout", "stderr"):
                self._output += body["output"]
            if event == "initialized":
                self._initialized.set()
            if event in ("terminated", "stopped"):
                self._ended.set()
        self._ended.set()


if __name__ == "__main__":
    print(json.dumps({"us": measured(*sys.argv[1:])}))
