"""Figures on data that is not trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from opstep.api.program import Program
from opstep.api.settings import RunSettings
from opstep.runtime.ir.effects import effects_of
from opstep.runtime.ir.errors import InputError, UnknownName
from opstep.training.data import Batches, Position


class Validation:
    """Runs graphs on all batches and gives the means of their first results, a scalar each, by
    `names`: of the loss, ``loss``. A batch counts as much as it has rows. States that the graphs
    update are as they were afterwards.
    """

    def __init__(self, graphs: Mapping[str, str], batches: Batches):
        self.graphs = dict(graphs)
        self.batches = batches

    def check(self, program: Program, best_by: str) -> None:
        """Complains of graphs that give no figure, and where none is called `best_by`."""
        if best_by not in self.graphs:
            message = f"best: no validation has the figure {best_by}"
            raise UnknownName(message, best_by, self.graphs)
        for graph in self.graphs.values():
            results = program.graph(graph).results
            if not results or results[0].rank:
                what = str(results[0]) if results else "nothing"
                raise InputError(f"graph {graph} gives {what}; a metric is a scalar")

    def run(self, program: Program, settings: RunSettings) -> dict[str, float]:
        """The figures with the present params."""
        updated = effects_of(list(self.graphs.values()), program.verified).updates
        before = {name: program.params[name] for name in updated}
        sums, rows = dict.fromkeys(self.graphs, 0.0), 0
        inputs = {g: [b.name.text for b in program.graph(g).inputs] for g in self.graphs.values()}
        for _, batch in self.batches.rest(Position()):
            count = _rows(list(batch.values()))
            for name, graph in self.graphs.items():
                given = {n: batch[n] for n in inputs[graph]}
                (value, *_) = program.run(graph, given, **vars(settings)).outputs
                sums[name] += float(value) * count
            rows += count
        for name, value in before.items():
            program.params[name] = value
        return {name: total / rows for name, total in sums.items()}


def _rows(arrays: Sequence[np.ndarray]) -> int:
    return max((len(a) for a in arrays if a.ndim), default=1)
