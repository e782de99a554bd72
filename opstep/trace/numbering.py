"""How the ops of a plan are counted. Those that run as one have numbers of their own, in the order
of the program, and the last of them stands for all.
"""

from __future__ import annotations

from opstep.runtime.plan.plan import Plan, Step


class Numbering:
    """Numbers from that of the plan's first op. `ops`: the op of each number; `step_of`: the plan's
    step that runs it; `first`, `last`: of each step the numbers of its first op and of its last.
    """

    def __init__(self, plan: Plan):
        self.ops: list[Step] = []
        self.step_of: list[int] = []
        self.first: list[int] = []
        self.last: list[int] = []
        for number, step in enumerate(plan.steps):
            self.first.append(len(self.ops))
            self.ops += step.members or (step,)
            self.last.append(len(self.ops) - 1)
            self.step_of += [number] * (len(self.ops) - len(self.step_of))

    def __len__(self) -> int:
        return len(self.ops)

    def stands_for(self, op: int) -> int:
        """The op whose kernel runs this one: itself, unless it is one of several."""
        return self.last[self.step_of[op]]

    def giver(self, step: int, value: int) -> tuple[int, int]:
        """Which op of a step gives a value, and which of its results that is."""
        for op in range(self.first[step], self.last[step] + 1):
            if value in self.ops[op].results:
                return op, self.ops[op].results.index(value)
        raise KeyError(value)
