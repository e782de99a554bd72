"""Reverse-mode gradients: from a graph to graphs that compute its results and their derivatives.

Each op's rule writes IR, so a gradient is a graph like any other: it is printed, planned and
stepped through. Calls of graphs are inlined. The tape is the forward pass itself: rules refer to
its values by name. Control flow is in `control` and `loops`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from opstep.runtime.ir.collector import collector_paused
from opstep.runtime.ir.graph import Apply, Assert, Graph, Module, Return
from opstep.runtime.ir.verified import Verified, VerifiedGraph
from opstep.runtime.ir.verify import verify
from opstep.runtime.transforms.backward import GradientError
from opstep.runtime.transforms.builder import Var
from opstep.runtime.transforms.control import ControlGradients
from opstep.runtime.transforms.family import Draft, Family, typed
from opstep.runtime.transforms.forward import Place

__all__ = ["GradientError", "grad"]


def grad(
    verified: Verified | Module,
    graph: str,
    wrt: Sequence[str],
    *,
    seeded: bool = False,
    name: str | None = None,
    library: Sequence[Module] = (),
    optional: Collection[str] = (),
    unused: list[str] | None = None,
) -> tuple[Graph, ...]:
    """The graph `name` (default ``<graph>_grad``): results of `graph`, then its derivative by each
    of `wrt`. Then the graphs that it calls, those of derivatives of control flow.

    `wrt` names inputs of the graph or named tensors. The first result must be a float scalar, whose
    derivative is taken; with `seeded` the results may have any shape, and the new graph takes one
    more input for each float result, ``d_<k>``, the derivative of the loss by that result. The
    derivative by ``fc.w`` is called ``d_fc_w``; of what nothing depends on it is 0, or left out
    where its name is `optional`, and the name is added to `unused`. Updates and asserts are kept.
    A `Module` is verified first, and may call graphs of the modules of `library`. Raises
    `GradientError`.
    """
    if isinstance(verified, Module):
        verified = verify(verified, library=library)
    with collector_paused():
        gradient = _Gradient(verified, graph, wrt, name or f"{graph}_grad")
        made = gradient.made(seeded, optional)
    if unused is not None:
        unused += gradient.unused
    return made


class _Gradient:
    def __init__(self, verified: Verified, graph: str, wrt: Sequence[str], name: str):
        self.source = verified.graphs[graph]
        self.wrt = wrt
        self.name = name
        self.unused: list[str] = []
        self.family = Family(verified, graph, [t for t in wrt if t in verified.tensors], [name])
        self.control = ControlGradients(self.family)

    def made(self, seeded: bool, optional: Collection[str]) -> tuple[Graph, ...]:
        source = self.source
        inputs = [(b.name.text, typed(b)) for b in source.graph.inputs]
        draft = Draft(self.family, inputs, source.graph.type_parameters)
        given = {v.name: v for v in draft.inputs}
        by = [self._target(name, given) for name in self.wrt]
        forward = draft.go(self.control, [v.name for v in by], {}, asserts=True)
        results = forward.run(source, draft.inputs, Place(source.source))
        gradients: dict[str, Var] = {}
        if seeded:
            floats = [r for r in results if r.dtype.is_float]
            seeds = draft.take([(f"d_{k}", r.type) for k, r in enumerate(floats)])
            for r, seed in zip(floats, seeds, strict=True):
                draft.seed(gradients, r, seed)
        else:
            loss = _loss(results, source)
            draft.builder.at = next(
                (s.at for s in reversed(draft.builder.statements) if _defines(s, loss)), None
            )
            one = draft.builder.named(
                f"d_{loss.name}", "full", shape=(), value=1.0, dtype=loss.dtype
            )
            draft.seed(gradients, loss, one)
        found = draft.come_back(gradients, by)
        self.unused = [n for n, g in zip(self.wrt, found, strict=True) if g is None]
        left_out = {*self.unused} & {*optional}
        outputs = list(results)
        for name, x, gradient in zip(self.wrt, by, found, strict=True):
            if name not in left_out:
                outputs.append(gradient or draft.zeros(x))
        first = draft.finish(self.name, outputs, forward.versions)
        return (first, *self.family.called_by(first))

    def _target(self, name: str, inputs: dict[str, Var]) -> Var:
        found = inputs.get(name)
        if found is None and name in self.family.verified.tensors:
            found = Var(name, self.family.verified.tensors[name].type)
        if found is None:
            graph = self.source.graph.name.text
            raise GradientError(f"{name} is neither an input of {graph} nor a param")
        return found


def _defines(statement: Apply | Assert, value: Var) -> bool:
    return isinstance(statement, Apply) and any(
        b.name.text == value.name for b in statement.results
    )


def _loss(results: Sequence[Var], source: VerifiedGraph) -> Var:
    if results and results[0].dtype.is_float and not results[0].type.rank:
        return results[0]
    returned = next((s for s in source.graph.body if isinstance(s, Return)), None)
    raise GradientError(
        "the first result must be a float scalar such as a loss: f32[]",
        returned,
        "return its sum or its mean first",
        source.source,
    )
