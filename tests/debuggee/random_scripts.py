"""Random scripts in which values change in all ways that Python has, some of them with tensors.

A statement is a template over pools of names, which are kept to kinds by the templates themselves.
What may raise is in a `try`, so that scripts run to their end. Nothing depends on when an object
dies: a trace function in Python keeps locals until the next line.
"""

from __future__ import annotations

import random
import re

HEAD = """import collections, dataclasses
shared = [1, 2]
table = {"n": 0}
count = 0

class Account:
    total = 0
    def __init__(self, x):
        self.x = x
        self.log = []
    def add(self, k):
        self.x += k
        self.log.append(self.x)
        return self

class Slotted:
    __slots__ = ("a", "b")
    def __init__(self, a):
        self.a = a
    def put(self, v):
        self.b = [v, self.a]
        self.a = v

@dataclasses.dataclass
class Record:
    u: int = 0
    v: list = dataclasses.field(default_factory=list)

class Scope:
    def __init__(self):
        self.n = 0
    def __enter__(self):
        self.n += 1
        return self
    def __exit__(self, *error):
        self.n += 10
        return False

Pair = collections.namedtuple("Pair", "p q")

def push(items, k):
    items.append(k)
    shared.append(k)
    return len(items)

def bump():
    global count
    count += 1
    table["n"] += count
    return count

def upto(n, box):
    for i in range(n):
        box.append(i)
        sent = yield i
        if sent:
            box.append(sent)

def depth(n, seen):
    if n <= 0:
        return 0
    seen.append(n)
    r = n + depth(n - 1, seen)
    seen[-1] += r
    return r

def counter():
    c, hist = 0, []
    def inc(k=1):
        nonlocal c
        c += k
        hist.append(c)
        return c
    return inc

def risky(k, seen=[]):
    seen.append(k)
    if k % 3 == 0:
        raise ValueError(k)
    return k
"""

TENSOR_HEAD = """import torch
import numpy as np
torch.manual_seed(0)
torch.set_num_threads(1)

def inplace(t, k):
    t += k
    t[0] = k * 2
    return t

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(3, 2)
        self.calls = 0
    def forward(self, x):
        self.calls += 1
        h = self.inner(x)
        h = torch.relu(h)
        return h.sum()
"""

BEGIN = """la, lb, lc = [1], [2, 3], []
da, db = {}, {"a": 1}
sa, sb = {1}, set()
i, j, h = 0, 1, 2
na, nb = [[1], [2]], [[]]
oa, ob = Account(1), Account(2)
sl, rec, fn = Slotted(1), Record(), counter()
ta, st, gq = (1, [2]), "s", iter(())
dq, dd, ct = collections.deque([1, 2], 5), collections.defaultdict(list), collections.Counter()
ba = bytearray(b"abc")
"""
TENSOR_BEGIN = """x, xx = torch.zeros(3), torch.ones(2, 2)
y, yy = x.view(3), xx[0]
ar, as_, cut = np.zeros(4), np.ones((2, 2)), np.zeros(2)
tl, td = [x], {"w": xx}
net = Net()
opt = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
"""

POOLS = {
    "L": "la lb", "M": "lb lc", "D": "da db", "S": "sa sb", "I": "i j", "J": "j h", "N": "na nb",
    "O": "oa ob", "X": "x xx", "Y": "y yy", "A": "ar as_",
}  # fmt: skip

PLAIN = """L.append(I)|L = [I, I + 1, J]|L.insert(0, I)|L[0] = I|L.sort()|L.reverse()|L += [I, J]
L[1:2] = [7, 8]|L.extend(range(K))|del L[:1]|M = L|M = list(L)|L.clear()|N = [L, M]|N[0].append(I)
N.append([I])|N[-1].append(K)|N[0][0:0] = [I]|D[I] = K|D["l"] = L|D.setdefault("m", []).append(I)
D.pop(I, None)|D.update(z=I)|D = {"a": I, "b": [K]}|D = {a: b for a, b in D.items() if a != K}
D |= {"q": I}|S.add(I)|S = {I, K}|S.discard(K)|S |= {I, 99}|I = I + K|I, J = J, I
I = len(L) + K|I = sum(a for a in L if isinstance(a, int))|L = [a * 2 for a in range(K)]
L = [[a, I] for a in range(2)]|O = Account(I)|O.add(K)|O.x = I|O.log = L|O.log.append(K)
O.add(1).add(2)|O.extra = D|O.log[:] = [I]|sl = Slotted(I)|sl.put(K)|sl.a = L|rec = Record(I)
rec.v.append(I)|rec.u += 1|I = push(L, K)|I = bump()|table["k"] = L|shared.append(I)|shared[0] = K
L = list(upto(K, M))|I = depth(3, L)|fn = counter()|I = fn(K)|Account.total = I|ta = (I, L)
ta = Pair(L, K)|ta[0].append(I)|dq.append(I)|dq.appendleft(K)|dq.rotate(1)|dd[K].append(I)|dd["x"]
ct[K] += 1|ct.update([I])|ba.append(K)|ba[0:1] = b"zz"|st = st + "x" * K|st = str(L)[:20]
I = max([I, K], key=lambda q: -q)|L = sorted(L, key=str)|L = list(map(lambda z: [z], L))
N = [L] * 2|L.append(M[:])|I = [push(L, a) for a in range(2)][0]|setattr(O, "dynK", L)
O.__dict__["raw"] = I|vars(O).pop("raw", None)|del O.extra|L[:] = L[::-1]
N[0], N[-1] = N[-1], N[0]|gq = upto(3, L); next(gq)|next(gq)|gq.send(5)|gq = None|*L, I = [I, K, J]
I = (w := len(L)) + K|L = L or [0]|globals()["count"] = I|D["self"] = D.get("self", 0)
O.child = Account(K)|O.child.add(I)|D = dict(zip("ab", L))|L = [O, I]|L[0].x = K
N = [[O.log], [sl]]"""

TENSORS = """X = torch.arange(4.0)|X = torch.ones(2, 3)|X += K|X[0] = K|X.mul_(2)|X.data.add_(1)
Y = X[0]|Y = X.view(-1)|Y = X.clone()|X.view(-1)[1] = K|Y = inplace(X, K)|A = X.numpy()|A += K
A = np.arange(6.0)|A[0] = K|A[::2] = K|cut = A[1:]|cut[...] = K|X = torch.from_numpy(np.zeros(3))
tl.append(X)|tl = [X, Y]|tl[0].add_(1)|td["w"] = X|td["w"].zero_()|torch.add(X, 1, out=X)
X.t_()|X.fill_(K)|np.add(A, 1, out=A)|Y = X.expand(2, *X.shape)|net.inner.weight.data.mul_(0.5)
net.inner.bias.data[0] = K|net(torch.ones(1, 3)).backward(); opt.step()|opt.zero_grad()
loss = net(torch.ones(2, 3) * K); loss.backward()|opt.step()|X = net.inner.weight.detach()
O.t = X|O.t = torch.zeros(2); O.t[0] = K|A.sort()|X.unsqueeze_(0)|X.resize_(2)
X.data = torch.zeros(2)|X = X * 2|Y, X = X, Y|X, Y = Y, torch.zeros(K)|L.append(X)|D["x"] = Y"""

# Tensors of more than 64 KB: storages of their own, views, writes of all kinds, an optimizer.
LARGE_HEAD = """import threading
BOPT = {"adam": torch.optim.AdamW, "sgd": torch.optim.SGD, "fused": torch.optim.Adam}

def in_thread(call):
    one = threading.Thread(target=call)
    one.start(), one.join()  # in a line: between two it would be a race

def large(t, k):
    v = t.view(-1)
    v[k] = k
    v.add_(k)
    return v[1:]
"""
LARGE_BEGIN = """x, xx = torch.zeros(20000), torch.ones(130, 140)
y, yy = x.view(100, 200), xx[0]
tl, td = [x], {"w": xx}
bn = torch.nn.Linear(200, 100)
bw = bn.weight
bopt = BOPT["KIND"](bn.parameters(), 0.1, **{"fused": {"fused": True}}.get("KIND", {}))
"""
LARGE = """X = torch.arange(20000.0)|X = torch.ones(130, 140)|X = torch.zeros(18000) + K
X.add_(K)|X[K] = K|X.mul_(2)|X.data.sub_(1)|X.view(-1)[K::7] = K|Y = X[1:]|Y = X.view(-1)
Y = large(X, K)|Y.add_(1)|torch._foreach_add_([X, Y], 1.0)|torch._foreach_mul_([X, Y], 0.5)
torch.add(X, 1, out=X)|X.fill_(K)|X.zero_()|X.copy_(Y)|X.t_()|X.unsqueeze_(0)|X.squeeze_()
X.resize_(30000).fill_(K)|X.resize_(20).zero_()|X.data = torch.ones(17000)
X.set_(torch.ones(19000) * K)|X = X * 2|X, Y = Y, X|X.relu_()|X.clamp_(0, 3)
X.index_fill_(0, torch.tensor([K]), 9.0)|X.view(-1).index_add_(0, torch.tensor([1]), torch.ones(1))
A = X.numpy()
A = X.detach().numpy(); A[K] = K; A = None|A = None|A[K] = I|X = torch.from_numpy(A)
A = np.ones(20000)|X.view(-1).numpy()[K] = 5.0|in_thread(lambda: X.add_(K))
in_thread(lambda: X.zero_())|with torch.inference_mode(): X.add_(K)
with torch.no_grad(): X.add_(K)|X.to(torch.float64).add_(1)
bn(torch.ones(2, 200) * K).sum().backward(); bopt.step()|bopt.step()|bopt.zero_grad()
bw.data.mul_(0.5)|bopt.zero_grad(set_to_none=False)|X = bw.grad
bn(torch.ones(2, 200) * K).pow(2).sum().backward()|X = bw.detach()
with torch.no_grad(): bw.add_(K)|X = bopt.state[bw]["exp_avg"]|X = bw.data
bw.data = torch.ones(100, 200)|bw.data.copy_(torch.ones(100, 200) * K)|tl = [X, Y]|tl[0].add_(1)
td["w"] = X|td["w"].zero_()|O.t = X|O.t.add_(1)
X = torch.cat([X.view(-1)[:9000], Y.view(-1)[:9000]])|X = torch.stack([X, X])|X = X.bool()
X.random_(0, 9)|X.uniform_()|X = torch.empty(20000).fill_(K)
torch.nn.functional.relu(X, inplace=True)|X.view(-1)[K:].sort()[0].add_(1)|torch.neg(Y, out=X)
X.untyped_storage().fill_(0)|X.untyped_storage()[K] = K|X = X.clone().requires_grad_()
X = X.detach()"""

BLOCKS = """for v in range(K):/    *|for v in list(L)[:3]:/    *|if I % 2:/    */else:/    *
while I < K and bump() % 20:/    I += 1/    *|with Scope() as cm:/    *
try:/    I = risky(K)/    */except ValueError as e:/    */finally:/    L.append(-1)
for v in range(4):/    if v == 2: continue/    */    if v == 3: break/else:/    *
for v, z in enumerate(upto(K, L)):/    *|tmp = L/del tmp
def local(q, m=L):/    q.append(len(m))/    m.append(K)/    return [q, m]/N = local(M)
def outer(v0):/    box = [v0]/    def inner(w):/        box.append(w)/        return box
    inner(3)/    r = inner(4)/    return r/M = outer(K)
try:/    L[99]/except IndexError as e:/    I = 5
match D:/    case {"a": aa}:/        I = 1/    case _:/        pass
gg = upto(4, L)/next(gg)/try:/    gg.send(50)/    gg.close()/except StopIteration:/    pass"""


def _templates(text: str) -> list[str]:
    joined = text.replace("\n    ", "/    ") if "/" in text else text
    return [t for line in joined.split("\n") for t in re.split(r"\|(?!=)", line) if t]


class Writer:
    def __init__(self, seed: int, tensors: bool):
        self.random = random.Random(seed)
        self.tensors = tensors
        self.large = tensors and seed % 2 == 1
        self.lines: list[str] = []

    def script(self) -> str:
        begin = BEGIN + (TENSOR_BEGIN if self.tensors else "")
        if self.large:
            begin += LARGE_BEGIN.replace("KIND", self.random.choice(["adam", "sgd", "fused"]))
        begin = begin.splitlines()
        functions, size = self.random.randint(1, 2), self.random.randint(20, 60)
        for k in range(functions):
            self.lines += [f"def work{k}(arg):", *(f"    {line}" for line in begin)]
            self.body(size // (functions + 1), 1, 0)
            self.lines += ["    return [la, da, oa]", f"res{k} = work{k}([0])"]
        self.lines += begin
        self.body(size // (functions + 1), 0, 0)
        head = HEAD + (TENSOR_HEAD if self.tensors else "") + (LARGE_HEAD if self.large else "")
        return head + "\n".join(self.lines) + "\n"

    def body(self, count: int, level: int, depth: int) -> None:
        pad = "    " * level
        for _ in range(count):
            if depth < 2 and self.random.random() < 0.25:
                for line in self.filled(self.random.choice(_templates(BLOCKS))).split("/"):
                    if line.strip() == "*":
                        extra = len(line) // 4
                        self.body(self.random.randint(1, 2), level + extra, depth + 1)
                    else:
                        self.lines.append(pad + line)
                continue
            is_tensor = self.tensors and self.random.random() < 0.6
            is_large = self.large and self.random.random() < 0.7
            of_tensors = LARGE if is_large else TENSORS
            text = self.filled(self.random.choice(_templates(of_tensors if is_tensor else PLAIN)))
            if text.startswith("with "):
                text = text.replace(": ", f":\n{pad}        ", 1)
                self.lines += [f"{pad}try:", f"{pad}    {text}", f"{pad}except Exception: pass"]
                continue
            self.lines += [f"{pad}try: {text}", f"{pad}except Exception: pass"]

    def filled(self, template: str) -> str:
        chosen = {k: self.random.choice(names.split()) for k, names in POOLS.items()}
        chosen["K"] = str(self.random.randint(1, 6))
        words, k = "", 0
        while k < len(template):
            c = template[k]
            around = template[k - 1 : k] + template[k + 1 : k + 2]
            alone = not any(a.isalpha() or a == "_" for a in around) or template[k - 3 : k] == "dyn"
            words += chosen.get(c, c) if alone else c
            k += 1
        return words


def script(seed: int, tensors: bool = False) -> str:
    return Writer(seed, tensors).script()
