"""Optimizers and schedules, for ``Program.with_optimizer``, which writes the text of a step.

    step = program.with_optimizer("loss", optim.AdamW(lr=optim.Cosine(1e-3, 1000, warmup=50)))
    for batch in batches:
        step.run("loss_step", batch)

`optimizers` have the formulas, `schedules` those of learning rates, `scaling` that of losses;
`recipes` checks what is asked for, `step` and `updates` write it, with the help of `writing`.
"""

from opstep.optim.optimizers import SGD, Adafactor, Adam, AdamW, Lion, Optimizer, RMSprop
from opstep.optim.scaling import LossScale
from opstep.optim.schedules import Constant, Cosine, Linear, Schedule, Step

__all__ = [
    "SGD",
    "Adafactor",
    "Adam",
    "AdamW",
    "Constant",
    "Cosine",
    "Linear",
    "Lion",
    "LossScale",
    "Optimizer",
    "RMSprop",
    "Schedule",
    "Step",
]
