"""Figures on data that is not trained on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

from opstep.api.program import Program
from opstep.api.settings import RunSettings
from opstep.runtime.ir.effects import effects_of
from opstep.runtime.ir.errors import InputError, UnknownName
from opstep.training.data import Batches, Part, Position


class Validation:
    """Runs graphs on all batches and gives the means of their first results, a scalar each, by
    `names`: of the loss, ``loss``. A batch counts as much as it has rows. States that the graphs
    update are as they were afterwards.
    """

    def __init__(self, graphs: Mapping[str, str], batches: Batches):
        self.graphs = dict(graphs)
        self.batches = batches
        self._part = Part()
        self._shared: Callable[[list[Any]], list[list[Any]]] = lambda own: [own]

    def share(self, part: Part, shared: Callable[[list[Any]], list[list[Any]]]) -> None:
        """From now on ranks take turns at batches, where graphs do not have them work together.
        `shared` gives what all ranks have.
        """
        self._part, self._shared = part, shared

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
        effects = effects_of(list(self.graphs.values()), program.verified)
        before = {name: program.params[name] for name in effects.updates}
        in_turn = not effects.collectives and not effects.updates
        part = self._part if in_turn else Part()
        own: list[tuple[int, list[float]]] = []  # of each batch its rows and figures
        inputs = {g: [b.name.text for b in program.graph(g).inputs] for g in self.graphs.values()}
        for k, (_, batch) in enumerate(self.batches.rest(Position())):
            if k % part.count != part.index:
                continue
            figures = []
            for graph in self.graphs.values():
                given = {n: batch[n] for n in inputs[graph]}
                (value, *_) = program.run(graph, given, **vars(settings)).outputs
                figures.append(float(value))
            own.append((_rows(list(batch.values())), figures))
        for name, value in before.items():
            program.params[name] = value
        turns = zip_longest(*(self._shared(own) if in_turn else [own]))
        batches = [batch for turn in turns for batch in turn if batch is not None]
        sums, rows = [0.0] * len(self.graphs), 0
        for count, figures in batches:  # in their order, whoever computed them
            sums = [s + f * count for s, f in zip(sums, figures, strict=True)]
            rows += count
        return {name: total / rows for name, total in zip(self.graphs, sums, strict=True)}


def _rows(arrays: Sequence[np.ndarray]) -> int:
    return max((len(a) for a in arrays if a.ndim), default=1)
