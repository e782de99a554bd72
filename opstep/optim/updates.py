"""The graphs that a step calls: the scalars of the step, and one update for each type of param."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from opstep.optim.checks import complement
from opstep.optim.optimizers import Optimizer
from opstep.optim.scaling import LossScale
from opstep.optim.schedules import Schedule
from opstep.optim.writing import Writer, generic, type_of
from opstep.runtime.ir.lexer import identifier, quote_name
from opstep.runtime.ir.shards import Shard
from opstep.runtime.ir.types import DType, TensorType, f32

F64 = "f64[]"


@dataclass(frozen=True)
class Recipe:
    """What a step is made of, checked. `decay`: by name of a param. `counter` and `scale`: the
    states that count steps and scale the loss. `grad_norm`: the norm of all gradients is its last
    result. `parts`: of these params, by name, each rank updates a part, and keeps no more of their
    states; `bucket`: bytes of them that are gathered at once. `shards`: params declared as shards.
    """

    name: str
    optimizer: Optimizer
    decay: dict[str, float] = field(default_factory=dict)
    counter: str = "step"
    clip_norm: float | None = None
    clip_value: float | None = None
    grad_norm: bool = False
    ema: float | None = None
    master_weights: bool = True
    loss_scale: LossScale | None = None
    scale: str = "loss.scale"
    parts: Mapping[str, Shard] = field(default_factory=dict)
    bucket: int = 0
    shards: Mapping[str, Shard] = field(default_factory=dict)

    @property
    def decays(self) -> bool:
        return any(self.decay.values())


class Updates:
    """Adds to a program the graphs that updates call; each gives its name."""

    def __init__(self, writer: Writer, recipe: Recipe):
        self.writer = writer
        self.recipe = recipe
        self.optimizer = recipe.optimizer
        self.counter = quote_name(recipe.counter)
        self._made: dict[tuple[str, str], str] = {}  # graphs by what they do, and generic type

    @cached_property
    def schedule(self) -> str:
        """The learning rate of the present step, in f64."""
        schedule = self.optimizer.lr
        assert isinstance(schedule, Schedule)
        text = schedule.text()
        counted = f"t = cast({self.counter}, dtype=f64)\n" if re.search(r"\bt\b", text) else ""
        told = f"The learning rate: {schedule.about()}."
        name = identifier(f"{self.recipe.name}_lr")
        return self.writer.graph(name, {}, {"lr": F64}, counted + text, told)

    def rates(self, dtype: DType) -> str:
        """The optimizer's scalars of the present step, computed in f64, in `dtype`."""
        names, text = self.optimizer.rates()
        body = ""
        if re.search(r"\bt\b", text):
            body += f"now = add({self.counter}, 1)\nt = cast(now, dtype=f64)\n"
        if re.search(r"\bfirst\b", text):
            body += f"first = equal({self.counter}, 0)\n"
        body += text
        results = dict.fromkeys(names, F64)
        if dtype is f32:
            body += "".join(f"{n}_f32 = cast({n}, dtype=f32)\n" for n in names)
            results = {f"{n}_f32": "f32[]" for n in names}
        told = f"What all updates of one step of {self.optimizer.name} share, computed in f64."
        name = self._named(f"{self.optimizer.name}_rates", dtype)
        return self.writer.graph(name, {"lr": F64}, results, body, told)

    def keep(self, dtype: DType) -> str:
        """What decoupled decay leaves of a param in a step."""
        body = "decayed = mul(lr, decay)\nrest = sub(1.0, decayed)\n"
        result = "rest"
        if dtype is f32:
            body, result = f"{body}keep = cast(rest, dtype=f32)\n", "keep"
        told = "The factor that weight decay shrinks a param by in a step."
        name = self._named(f"{self.optimizer.name}_keep", dtype)
        inputs = {"lr": F64, "decay": F64}
        return self.writer.graph(name, inputs, {result: f"{dtype}[]"}, body, told)

    def update(self, t: TensorType) -> str:
        """A param of type `t`, its gradient, states and scalars, to the new param and states."""
        key = ("update", generic(t))
        if key not in self._made:
            write = self._narrow_update if t.dtype.is_half else self._update
            self._made[key] = write(t)
        return self._made[key]

    def _update(self, t: TensorType) -> str:
        g, optimizer, decays = generic(t), self.optimizer, self.recipe.decays
        states = {n: str(s) for n, s in optimizer.states(type_of(g)).items()}
        scalars = [*optimizer.rates().names, *[self.decay_input] * decays]
        inputs = {"p": g, "g": g} | states | dict.fromkeys(scalars, f"{t.dtype}[]")
        results = {"new_p": g} | {f"new_{n}": s for n, s in states.items()}
        body = optimizer.update(type_of(g), decays)
        name = self._named(f"{optimizer.name}_{t.rank}d", t.dtype)
        return self.writer.graph(name, inputs, results, body, f"An update by {optimizer.title}.")

    def _narrow_update(self, t: TensorType) -> str:
        """The update of a param of two bytes: in f32, then rounded once."""
        wide, narrow = generic(t.with_dtype(f32)), generic(t)
        inner = self.update(t.with_dtype(f32))
        states = {n: str(s) for n, s in self.optimizer.states(type_of(wide)).items()}
        scalars = [*self.optimizer.rates().names, *[self.decay_input] * self.recipe.decays]
        master = {"master": wide} if self.recipe.master_weights else {}
        inputs = {"p": narrow, "g": wide} | master | states | dict.fromkeys(scalars, "f32[]")
        new = {f"new_{n}": s for n, s in states.items()}
        body = "wide = cast(p, dtype=f32)\n"
        if master:
            body += f"rounded = cast(master, dtype={t.dtype})\nsame = equal(rounded, p)\n"
            body += "exact = where(same, master, wide)\n"
        given = ", ".join(["exact" if master else "wide", "g", *states, *scalars])
        body += f"{', '.join(['new_master', *new])} = {inner}({given})\n"
        body += f"new_p = cast(new_master, dtype={t.dtype})\n"
        told = f"The same in f32, of a param of {t.dtype}."
        if master:
            told += " master has its exact value, unless p was set meanwhile."
        results = {"new_p": narrow} | ({"new_master": wide} if master else {}) | new
        name = self._named(f"{self.optimizer.name}_{t.rank}d", t.dtype)
        return self.writer.graph(name, inputs, results, body, told)

    def ema_share(self, dtype: DType) -> str:
        """How far the average moves towards the params in a step: in the first, all the way."""
        assert self.recipe.ema is not None
        body = f"""\
            first = equal({self.counter}, 0)
            later = full(shape=[], value={complement(self.recipe.ema)}, dtype=f64)
            exact = where(first, 1.0, later)
            share = cast(exact, dtype={dtype})
            """
        told = "How far averages of params move towards them: in the first step, all the way."
        return self.writer.graph(
            self._named("ema_share", dtype), {}, {"share": f"{dtype}[]"}, body, told
        )

    def ema(self, t: TensorType) -> str:
        """The exponential moving average of a param of type `t`."""
        g = generic(t)
        if ("ema", g) in self._made:
            return self._made["ema", g]
        body = "off = sub(p, ema)\nmoved = mul(off, share)\nnew_ema = add(ema, moved)\n"
        inputs = {"ema": g, "p": g, "share": f"{t.dtype}[]"}
        told = "Exponential moving average of a param."
        name = self._named(f"ema_{t.rank}d", t.dtype)
        self._made["ema", g] = self.writer.graph(name, inputs, {"new_ema": g}, body, told)
        return self._made["ema", g]

    @property
    def decay_input(self) -> str:
        return "keep" if self.optimizer.decoupled else "decay"

    def _named(self, name: str, dtype: DType) -> str:
        return name if dtype is f32 else f"{name}_{dtype}"
