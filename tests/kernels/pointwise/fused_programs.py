"""Random programs of elementwise ops: many types, operands that broadcast, named tensors."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np

import opstep

SHAPES = (
    ((6, 40), (40,), (6, 1), (), (1, 40), (3, 6, 40)),
    ((5, 7), (7,), (5, 1), (), (1, 7), (2, 5, 7)),  # rows that vectors do not fit
    ((2, 6, 4, 5), (5,), (6, 1, 1), (), (2, 1, 4, 5), (6,)),  # planes that fit some
)
FLOATS = ("f32", "f32", "f16", "bf16", "f64")
TYPES = (*FLOATS, "i32", "i8", "bool", "i64")
UNARY = (
    "relu(X)", "sigmoid(X)", "exp(X)", "neg(X)", "abs(X)", "square(X)", "sqrt(X)", "tanh(X)",
    "clip(X, low=-1.5, high=2)", "leaky_relu(X, slope=0.1)", "round(X)", "reciprocal(X)", "silu(X)",
    "log(X)", "gelu(X)", "sign(X)", "identity(X)",
)  # fmt: skip
BINARY = ("add", "sub", "mul", "div", "maximum", "minimum", "prelu")
RELATIONS = ("less", "equal", "greater_equal", "logical_and", "not_equal")
POISON = 0xAB  # bytes that nobody has written
WHOLE = ("neg(X)", "abs(X)", "square(X)", "sign(X)", "identity(X)", "bitwise_not(X)")


class Writer:
    """Writes one program."""

    def __init__(self, seed: int, ops: int = 14):
        self.random = Random(seed)
        shapes = self.random.choice(SHAPES)
        self.values: list[tuple[str, str, tuple[int, ...]]] = []  # name, type, shape
        self.lines: list[str] = []
        self.inputs: list[tuple[str, str, tuple[int, ...]]] = []
        self.tensors: list[tuple[str, str, tuple[int, ...]]] = []
        for k in range(self.random.randint(2, 5)):
            shape = self.random.choice(shapes) if k else shapes[0]
            self.inputs.append((f"x{k}", self.random.choice(TYPES if k else FLOATS), shape))
        self.inputs.append(("c0", self.random.choice(FLOATS), shapes[0][1:2]))
        for k in range(self.random.randint(0, 2)):
            self.tensors.append((f"w{k}", self.random.choice(FLOATS), shapes[0]))
        self.values += self.inputs + self.tensors
        for k in range(ops):
            self.statement(f"v{k}")

    def pick(self, types=TYPES):
        fitting = [v for v in self.values if v[1] in types]
        late = fitting[-5:]
        return self.random.choice(late if self.random.random() < 0.7 else fitting)

    def statement(self, name: str) -> None:
        below = self.random.random()
        x = self.pick()
        if below < 0.35:
            pool = UNARY if x[1] in FLOATS else WHOLE if x[1] != "bool" else WHOLE[-2:]
            call, dtype, shape = self.random.choice(pool).replace("X", x[0]), x[1], x[2]
        elif below < 0.45:
            dtype = self.random.choice(TYPES)
            call, shape = f"cast({x[0]}, dtype={dtype})", x[2]
        elif below < 0.8:
            call, dtype, shape = self.binary()
        elif below < 0.87:
            call, dtype, shape = self.normalised()
        else:
            call, dtype, shape = self.where()
        if shape is None:
            return
        self.lines.append(f"  {name} = {call}")
        self.values.append((name, dtype, shape))

    def binary(self):
        a, b = self.pick(FLOATS), self.pick(FLOATS)
        shape = broadcast(a[2], b[2])
        if self.random.random() < 0.2:
            return f"mul({a[0]}, 0.75)", a[1], a[2]
        if self.random.random() < 0.2:
            return f"{self.random.choice(RELATIONS)}({a[0]}, {b[0]})", "bool", shape
        name = self.random.choice(BINARY)
        if name == "prelu" and shape != a[2]:
            name = "add"
        return f"{name}({a[0]}, {b[0]})", promoted(a[1], b[1]), shape

    def normalised(self):
        x = self.pick(FLOATS)
        fitting = [v for v in self.values if v[1] in FLOATS and v[2] == x[2][1:2]]
        if len(x[2]) < 2 or not fitting:
            return "", "", None
        channels = [self.random.choice(fitting) for _ in range(4)]
        dtype = x[1]
        for _, other, _ in channels:
            dtype = promoted(dtype, other)
        return f"batch_norm({', '.join(v[0] for v in (x, *channels))})", dtype, x[2]

    def where(self):
        conditions = [v for v in self.values if v[1] == "bool"]
        if not conditions:
            return "", "", None
        c, a, b = self.random.choice(conditions), self.pick(FLOATS), self.pick(FLOATS)
        shape = broadcast(c[2], broadcast(a[2], b[2]))
        return f"where({c[0]}, {a[0]}, {b[0]})", promoted(a[1], b[1]), shape

    def text(self) -> str:
        returned = self.random.sample(self.values, min(3, len(self.values)))
        updates = []
        for name, dtype, shape in self.tensors:
            fitting = [v for v in self.values if v[1:] == (dtype, shape)]
            updates.append(f"  {name} <- {self.random.choice(fitting)[0]}")
        head = ", ".join(f"{n}: {written(t, s)}" for n, t, s in self.inputs)
        gives = ", ".join(written(t, s) for _, t, s in returned)
        names = ", ".join(n for n, _, _ in returned)
        declared = [f"state {n}: {written(t, s)} = ones()" for n, t, s in self.tensors]
        opening = f"graph main({head}) -> {gives} {{"
        lines = [*declared, opening, *self.lines, *updates, f"  return {names}", "}"]
        return "\n".join(lines) + "\n"

    def arrays(self) -> dict[str, np.ndarray]:
        random = np.random.default_rng(self.random.randrange(1 << 30))
        return {n: array(random, t, s) for n, t, s in self.inputs}


class ProductWriter(Writer):
    """Writes a product or a convolution of halves, and what follows it element by element."""

    def __init__(self, seed: int, ops: int = 5):
        self.random = Random(seed)
        self.lines, self.tensors = [], []
        dtype = self.random.choice(("bf16", "f16"))
        call, operands, shape, channels = self.random.choice((self.convolved, self.multiplied))()
        self.lines.append(f"  p = {call}")
        self.inputs = [(name, dtype, size) for name, size in operands]
        around = [shape, shape, channels, (), shape[1:]]
        for k in range(self.random.randint(1, 3)):
            size = self.random.choice(around)
            self.inputs.append((f"x{k}", self.random.choice(("f32", dtype, dtype, "i8")), size))
        self.inputs.append(("c0", dtype, shape[1:2]))
        self.values = [v for v in self.inputs if v[0][0] in "xc"] + [("p", dtype, shape)]
        for k in range(ops):
            self.statement(f"v{k}")

    def pick(self, types=TYPES):
        """Mostly the last: chains."""
        fitting = [v for v in self.values if v[1] in types]
        return fitting[-1] if self.random.random() < 0.6 else self.random.choice(fitting)

    def convolved(self):
        r = self.random
        images, channels, filters = r.randint(1, 3), 8 * r.randint(4, 12), r.choice((3, 24, 70))
        height, width = r.randint(3, 9), r.choice((4, 7, 8))
        size, stride = r.choice((1, 3)), r.choice((1, 1, 2))
        padding = size // 2
        biased = r.random() < 0.5
        out = [(n + 2 * padding - size) // stride + 1 for n in (height, width)]
        operands = [
            ("image", (images, channels, height, width)),
            ("filter", (filters, channels, size, size)),
        ] + [("bias", (filters,))] * biased
        names = ", ".join(name for name, _ in operands)
        call = f"conv2d({names}, stride=[{stride}, {stride}], padding=[{padding}, {padding}])"
        return call, operands, (images, filters, *out), (filters, 1, 1)

    def multiplied(self):
        r = self.random
        batch = (r.randint(2, 3),) * r.randint(0, 1)
        m, n, k = r.randint(2, 90), r.choice((8, 33, 76)), r.choice((8, 40, 3000))
        biased = r.random() < 0.5
        operands = [("left", (*batch, m, k)), ("right", (n, k))]
        operands += [("bias", (n,))] * biased
        names = ", ".join(name for name, _ in operands)
        return f"linear({names})", operands, (*batch, m, n), (n,)

    def arrays(self) -> dict[str, np.ndarray]:
        random = np.random.default_rng(self.random.randrange(1 << 30))
        made = {n: array(random, t, s) for n, t, s in self.inputs}
        for name, a in made.items():
            if name[0] not in "xc":  # a NaN in there would be everywhere
                made[name] = random.standard_normal(a.shape).astype(a.dtype)
        return made


class NetworkWriter(Writer):
    """Writes convolutions of halves with elementwise ops, and others, between them. `scale`: of the
    images.
    """

    def __init__(self, seed: int, ops: int = 10, scale: int = 1):
        self.random = r = Random(seed)
        self.lines, self.tensors, self.values, self.inputs = [], [], [], []
        self.dtype = r.choice(("bf16", "f16"))
        size = r.randint(4, 7) * scale, r.randint(4, 8) * scale
        self.given("x", (r.randint(1, 2), r.choice((3, 32, 40, 64)), *size))
        self.values = self.inputs[:]
        for k in range(ops):
            name, _, shape = self.pick()
            others = ("norm", "act", "add", "add", "pool", "mean", "scale", "alone", "turned")
            kind = r.choice(("conv2d",) * 5 + others)
            getattr(self, f"_{kind}")(f"v{k}", name, shape)

    def given(self, name: str, shape: tuple[int, ...]) -> str:
        self.inputs.append((name, self.dtype, shape))
        return name

    def pick(self, types=TYPES):
        images = [v for v in self.values if len(v[2]) == 4]
        return images[-1] if self.random.random() < 0.65 else self.random.choice(images)

    def made(self, name: str, call: str, shape: tuple[int, ...]) -> None:
        self.lines.append(f"  {name} = {call}")
        self.values.append((name, self.dtype, shape))

    def _conv2d(self, name: str, x: str, shape) -> None:
        r = self.random
        n, c, *size = shape
        k, side = r.choice((32, 32, 40, 64, 70)), r.choice((1, 1, 3, 3, 2))
        stride, before = r.choice((1, 1, 2)), r.choice((side // 2, side // 2, 0, 1))
        out = [(s + 2 * before - side) // stride + 1 for s in size]
        if min(out) < 1:
            return
        operands = [x, self.given(f"w{name}", (k, c, side, side))]
        if r.random() < 0.5:
            operands.append(self.given(f"b{name}", (k,)))
        attrs = f"stride=[{stride}, {stride}], padding=[{before}, {before}]"
        self.made(name, f"conv2d({', '.join(operands)}, {attrs})", (n, k, *out))

    def _alone(self, name: str, x: str, shape) -> None:
        """A filter for each channel, and one of one place behind it, or behind what follows it."""
        r = self.random
        n, c, *size = shape
        sides = r.choice(((3, 3), (3, 3), (1, 3), (5, 2), (7, 7)))
        strides = r.choice(((1, 1), (1, 1), (2, 2), (2, 1)))
        before = [r.randint(0, side // 2) for side in sides]
        dilation = [r.choice((1, 1, 2)) for _ in sides]
        out = [
            (s + 2 * b - (side - 1) * d - 1) // step + 1
            for s, b, side, d, step in zip(size, before, sides, dilation, strides, strict=True)
        ]
        if min(out) < 1:
            return
        operands = [x, self.given(f"w{name}", (c, 1, *sides))]
        if r.random() < 0.5:
            operands.append(self.given(f"b{name}", (c,)))
        attrs = f"stride={list(strides)}, padding={before}, dilation={dilation}, groups={c}"
        self.made(name, f"conv2d({', '.join(operands)}, {attrs})", (n, c, *out))
        follow = r.choice((None, None, self._norm, self._act, self._scale))
        if follow:
            follow(f"{name}f", name, (n, c, *out))
        self._points(f"{name}p", self.values[-1][0], (n, c, *out))

    def _points(self, name: str, x: str, shape) -> None:
        n, c, *size = shape
        k = self.random.choice((32, 40, 64))
        filters = self.given(f"w{name}", (k, c, 1, 1))
        self.made(name, f"conv2d({x}, {filters})", (n, k, *size))

    def _scale(self, name: str, x: str, shape) -> None:
        n, c, *_ = shape
        own = self.random.choice(((c, 1, 1), (1, c, 1, 1), (n, c, 1, 1)))
        self.made(name, f"mul({x}, {self.given(f's{name}', own)})", shape)

    def _turned(self, name: str, x: str, shape) -> None:
        """Something of pixels whose channels are neighbours, as transformers of images have it."""
        c = shape[1]
        self.lines.append(f"  {name}a = transpose({x}, perm=[0, 2, 3, 1])")
        call = self.random.choice((f"layer_norm({name}a, shape=[{c}])", f"relu({name}a)"))
        self.lines.append(f"  {name}b = {call}")
        self.made(name, f"transpose({name}b, perm=[0, 3, 1, 2])", shape)

    def _norm(self, name: str, x: str, shape) -> None:
        own = [self.given(f"{letter}{name}", shape[1:2]) for letter in "gbmv"]
        self.made(name, f"batch_norm({', '.join((x, *own))})", shape)

    def _act(self, name: str, x: str, shape) -> None:
        self.made(
            name, self.random.choice(("relu(X)", "silu(X)", "mul(X, 0.5)")).replace("X", x), shape
        )

    def _add(self, name: str, x: str, shape) -> None:
        others = [v[0] for v in self.values if v[2] == shape]
        self.made(
            name, f"{self.random.choice(('add', 'mul'))}({x}, {self.random.choice(others)})", shape
        )

    def _pool(self, name: str, x: str, shape) -> None:
        if min(shape[2:]) >= 3:
            out = [(s - 3) // 2 + 1 for s in shape[2:]]
            self.made(name, f"max_pool2d({x}, kernel=[3, 3], stride=[2, 2])", (*shape[:2], *out))

    def _mean(self, name: str, x: str, shape) -> None:
        self.made(name, f"mean({x}, axes=[2, 3], keepdims=false)", shape[:2])

    def arrays(self) -> dict[str, np.ndarray]:
        from opstep.runtime.ir.types import DTYPES

        random = np.random.default_rng(self.random.randrange(1 << 30))
        found = {}
        for name, dtype, shape in self.inputs:
            numbers = random.standard_normal(shape) / max(shape[1:2] or (1,)) ** 0.5
            numbers = np.abs(numbers) if name[0] == "v" else numbers
            found[name] = numbers.astype(DTYPES[dtype].numpy)
        return found


def written(dtype: str, shape: tuple[int, ...]) -> str:
    return f"{dtype}[{', '.join(map(str, shape))}]"


def broadcast(a, b):
    if a is None or b is None:
        return None
    try:
        return np.broadcast_shapes(a, b)
    except ValueError:
        return None


def promoted(a: str, b: str) -> str:
    from opstep.runtime.ir.types import DTYPES, promote

    return promote(DTYPES[a], DTYPES[b]).name


def array(random, dtype: str, shape) -> np.ndarray:
    from opstep.runtime.ir.types import DTYPES

    numbers = random.standard_normal(shape) * 3
    special = random.random(shape)
    if dtype in FLOATS:
        numbers = np.where(special < 0.05, np.inf, np.where(special < 0.1, np.nan, numbers))
        numbers = np.where(special > 0.95, -0.0, numbers)
    elif dtype == "bool":
        numbers = numbers > 0
    return np.asarray(numbers).astype(DTYPES[dtype].numpy)


def bits(a: np.ndarray) -> Any:
    """The bytes of an array, of NaNs only that they are some."""
    if a.dtype.kind in "iub":
        return a.tobytes()
    return np.where(np.isnan(a), np.zeros((), a.dtype), a).tobytes(), np.isnan(a).tobytes()


def outcome(text: str, arrays: dict[str, np.ndarray], **options: Any) -> list:
    """What a run gives and leaves behind."""
    program = opstep.loads(text)
    found = program.run(inputs=arrays, steps=2, **options)
    named = [np.asarray(a) for a in program.params.values()]
    return [bits(np.asarray(a)) for a in (*found.outputs, *named)]


def joined_plan(program, fuse: bool = True):
    """A plan of `main` for a GPU of the architecture that is targeted, as far as our kernels go."""
    from opstep.runtime.device.cuda.lowering import Lowering
    from opstep.runtime.plan.planner import make_plan

    def takes(step, types) -> bool:
        return step.op.is_taken(*Lowering(step, types).args(), **step.attrs)

    types = [b.type for b in program.graphs["main"].inputs]
    return make_plan(
        program.verified, "main", types, opstep.policy(), library=program.library, fuse=fuse,
        takes=takes,
    )  # fmt: skip


def check_joined(program, arrays: dict[str, np.ndarray]) -> None:
    """The joined plan is sound, can be written and read, and gives the bits of single ops."""
    from opstep.runtime.plan.hazards import check
    from opstep.runtime.plan.listing import listing
    from opstep.runtime.plan.text import format_plan, parse_plan

    plan = joined_plan(program)
    assert not check(plan)
    assert parse_plan(format_plan(plan)) == listing(plan)
    with np.errstate(all="ignore"):
        assert simulated(plan, arrays, {}) == simulated(
            joined_plan(program, fuse=False), arrays, {}
        )


def simulated(plan, arrays: dict[str, np.ndarray], tensors: dict[str, np.ndarray]) -> list:
    """What a plan gives and leaves behind, each step by its CUDA kernels in the simulator, in the
    plan's memory.
    """
    from opstep.runtime.device.cuda.lowering import Lowering
    from opstep.runtime.device.cuda.simulator import simulator
    from opstep.runtime.plan.plan import Run

    memory = _memory(plan, tensors)

    def of(v: int) -> np.ndarray:
        value = plan.values[v]
        return memory[value.buffer][: value.type.nbytes]

    for v, a in zip(plan.inputs, arrays.values(), strict=True):
        of(v)[:] = np.ascontiguousarray(a).reshape(-1).view(np.uint8)
    for instruction in plan.instructions:
        if not isinstance(instruction, Run):
            continue
        step = plan.steps[instruction.step]
        if step.op.traits.reinterprets:
            continue
        places = (*step.operands, *step.results)
        types = [None if v is None else plan.values[v].type for v in places]
        launches, size = Lowering(step, tuple(types)).prepared()
        flat = [None if v is None else of(v) for v in places]
        workspace = np.full(size + 8, POISON, np.uint8)
        for launch in launches:
            simulator.run(launch, flat, workspace)
    last = {b.name: memory[k] for k, b in enumerate(plan.buffers) if b.kind == "param"}
    named = [last[n].view(tensors[n].dtype) for n in sorted(last)]
    results = [of(v).view(plan.values[v].type.dtype.numpy) for v in plan.outputs]
    return [bits(a) for a in (*results, *named)]


def _memory(plan, tensors: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Of each buffer, as bytes; what shares an arena's shares it here."""
    arena = np.full(plan.arena, POISON, np.uint8)
    types = {value.buffer: value.type for value in plan.values}
    found = []
    for k, b in enumerate(plan.buffers):
        if b.kind == "param":
            found.append(tensors[b.name].reshape(-1).copy().view(np.uint8))
        elif b.kind in ("const", "status"):
            found.append(np.array([b.literal or 0]).astype(types[k].dtype.numpy).view(np.uint8))
        elif b.offset >= 0:
            found.append(arena[b.offset : b.offset + b.nbytes])
        else:
            found.append(np.full(b.nbytes, POISON, np.uint8))
    return found
