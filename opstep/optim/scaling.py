"""Dynamic scaling of a loss whose gradients are small for f16 (Micikevicius et al. 2018,
arXiv:1710.03740, section 3.2), as ``torch.amp.GradScaler`` does it.
"""

from __future__ import annotations

from dataclasses import dataclass

from opstep.optim.checks import Checked, number, refuse, whole
from opstep.optim.writing import Writer, fresh
from opstep.runtime.ir.errors import SettingError
from opstep.runtime.ir.graph import Graph, Return
from opstep.runtime.ir.lexer import quote_name

LOWEST = 2.0**-14  # below, gradients are infinite whatever they are multiplied with
HIGHEST = 2.0**127


@dataclass(frozen=True)
class LossScale(Checked):
    """The loss is multiplied by `initial` before its gradient is taken. Where a gradient is not
    finite, the step changes nothing but the scale, which is multiplied by `backoff`; after
    `interval` good steps in a row it is multiplied by `growth`.
    """

    initial: float = 2.0**16
    growth: float = 2.0
    backoff: float = 0.5
    interval: int = 2000

    def __post_init__(self) -> None:
        self._check(number, "initial", low=LOWEST, below=HIGHEST)
        self._check(number, "growth", low=1.0)
        self._check(number, "backoff", below=1.0, above=True)
        self._check(whole, "interval", low=1)

    def next_scale(self, writer: Writer, scale: str, good: str) -> str:
        """Adds the graph that computes the scale and the number of good steps after this one."""
        body = f"""\
            more = add({good}, 1)
            enough = greater_equal(more, {self.interval})
            larger = mul({scale}, {self.growth})
            largest = minimum(larger, {HIGHEST})
            ahead = where(enough, largest, {scale})
            smaller = mul({scale}, {self.backoff})
            scale_next = where(finite, ahead, smaller)
            since = where(enough, 0, more)
            good_next = where(finite, since, 0)
            """
        told = "The scale of the loss in the next step, and the good steps since it changed."
        results = {"scale_next": "f32[]", "good_next": "i32[]"}
        name = f"{scale}_next".replace(".", "_")
        return writer.graph(name, {"finite": "bool[]"}, results, body, told)


def loss_scale_of(given: LossScale | str | None) -> LossScale | None:
    """What a caller may say: a `LossScale`, "dynamic" for its defaults, None for no scaling."""
    if given is None or isinstance(given, LossScale):
        return given
    if given != "dynamic":
        raise SettingError("loss_scale", given, "'dynamic', a LossScale or None")
    return LossScale()


def scaled_loss(writer: Writer, graph: Graph, scale: str) -> str:
    """Adds the graph of the loss times its scale, in f32, followed by all that `graph` returns."""
    returned = [s for s in graph.body if isinstance(s, Return)]
    if not graph.results or graph.results[0].rank or not graph.results[0].dtype.is_float:
        refuse(f"graph {graph.name.text} gives no loss: its first result is to be a float scalar")
    inputs = {b.name.text: str(b.type) for b in graph.inputs}
    taken = {*inputs, *writer.tensors}
    values = []
    for value in returned[0].values:
        values.append(fresh(value.text if value.text not in writer.tensors else "value", taken))
        taken.add(values[-1])
    body = [f"{', '.join(values)} = {graph.name.text}({', '.join(inputs)})"]
    wide, scaled = fresh("wide", taken), fresh("scaled", taken)
    body.append(f"{wide} = cast({values[0]}, dtype=f32)")
    body.append(f"{scaled} = mul({wide}, {quote_name(scale)})")
    results = {scaled: "f32[]"} | dict(zip(values, map(str, graph.results), strict=True))
    name = f"{graph.name.text}_scaled"
    return writer.graph(
        name, inputs, results, body, "The loss, scaled so that small gradients are no zeros in f16."
    )
