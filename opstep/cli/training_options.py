"""Options of ``opstep train``: what they say of data and of the optimizer."""

from __future__ import annotations

from typing import Any

import click

from opstep.cli.common import FloatRange, grouped, option
from opstep.cli.grad import names
from opstep.cli.options import Size

FLOAT = FloatRange(0)
GIVEN = (
    "lr", "schedule", "warmup", "clip_norm", "clip_value", "ema", "memory", "loss_scale",
    "data_parallel", "bucket", "grad_norm", "shard_optimizer",
)  # fmt: skip
OWN = ("self", "graph", "optimizer", "wrt", "freeze", "name")  # what else the step is written from


def _decay(value: str) -> tuple[str, float]:
    """``0.01``, or ``*.w=0.01`` for params with such names."""
    pattern, _, number = value.rpartition("=")
    return pattern, FLOAT.convert(number, None, None)


def _share(value: str) -> str | float:
    """A number between 0 and 1 is a share of the data; anything else says where data is."""
    try:
        share = float(value)
    except ValueError:
        return value
    if not 0 < share < 1:
        raise click.BadParameter(f"{value} is no share: it is to be between 0 and 1.")
    return share


def _hyperparameter(value: str) -> tuple[str, Any]:
    """``betas=0.9,0.99``, as a pair; numbers, True and False are those."""
    name, equals, text = value.partition("=")
    if not (name and equals and text):
        raise click.BadParameter(f"{value} is not a NAME=VALUE.")
    if name in OWN:
        raise click.BadParameter(f"{name} is no hyperparameter.")
    words = {"true": True, "false": False}
    found = [words.get(t.lower(), _number(t)) for t in text.split(",")]
    return name, found[0] if len(found) == 1 else tuple(found)


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


# What is trained on, what is validated on.
data_options = grouped(
    option(
        "--data -d [INPUT=]SOURCE…",
        "What to train on: a .npz, .npy, .safetensors, .parquet or .arrow file, whose columns are "
        "called as the inputs are, a part of it (FILE:train has train_x for x), or a folder with "
        "a folder of images for each class. INPUT=FILE:COLUMN gives one input, INPUT=NUMBER a "
        "number. Can be given several times.",
        required=True,
    ),
    option(
        "--validate SOURCE|SHARE…",
        "What to validate on: as --data; a part of that, such as test; or the share of it that is "
        "not trained on, such as 0.1.",
        _share,
    ),
    option(
        "--metric GRAPH…",
        "A graph whose first result is a figure of validations, beside the loss. Can be given "
        "several times.",
        to="metrics",
    ),
    option(
        "--validate-every EPOCHS",
        "Epochs between validations; the last one has one, too.",
        click.IntRange(1),
        default=1,
    ),
    option(
        "--best FIGURE",
        "Save what gave the best validation, not the last: loss, or a --metric, the greatest.",
    ),
    option("--batch ROWS", "Rows of a step.", click.IntRange(1), default=32),
    option("--drop-last", "Leave out what is left of an epoch."),
    option("--round", "Let floats of the data lose digits."),
)


# How params are updated.
optimizer_options = grouped(
    option("--optimizer NAME", "sgd, rmsprop, adam, adamw, lion or adafactor.", default="adamw"),
    option("--lr X", "Learning rate.", FLOAT),
    option(
        "--schedule KIND",
        "How the learning rate changes: constant, linear or cosine (to 0 at the last step), or "
        "step=N (to a tenth after every N steps).",
    ),
    option("--warmup STEPS", "Steps in which the learning rate rises from 0.", click.IntRange(0)),
    option(
        "--weight-decay [PATTERN=]X…",
        "Weight decay, of all params or of those with such names.",
        _decay,
    ),
    option(
        "--set NAME=VALUE…",
        "Another hyperparameter: momentum=0.9, betas=0.9,0.99.",
        _hyperparameter,
        to="hyperparameters",
    ),
    option("--wrt NAMES…", 'Params that are trained, such as "conv*, fc.w". Default: all.'),
    option("--freeze NAMES…", "Params that are not."),
    option("--clip-norm X", "Limit the norm of gradients.", FLOAT),
    option("--clip-value X", "Limit their elements.", FLOAT),
    option("--grad-norm", "Show and record the norm of gradients."),
    option("--ema X", "Keep averages of params as well.", FLOAT),
    option(
        "--memory SIZE",
        "What a step takes at most, such as 4GiB: values that take more are dropped and computed "
        "again.",
        Size(),
    ),
    option(
        "--data-parallel AXIS",
        "With --ranks: the axis of the mesh along which ranks have parts of each batch. Default: "
        "data or dp, or the only one.",
    ),
    option(
        "--bucket SIZE",
        "Small gradients that go to other ranks together, at least. Default: 25MiB.",
        Size(least=1),
    ),
    option(
        "--shard-optimizer",
        "With --ranks: each rank keeps a part of the optimizer's states, and updates that of the "
        "params (ZeRO, stage 1).",
    ),
    option(
        "--loss-scale",
        "Scale the loss, so that gradients in f16 do not become 0.",
        click.Choice(["dynamic"]),
    ),
)


def optimizer_arguments(options: dict[str, Any]) -> dict[str, Any]:
    """Those that were given, as `Program.with_optimizer` takes them."""
    given = {name: options[name] for name in GIVEN}
    found = {n: value for n, value in given.items() if value is not None and value is not False}
    for name in ("wrt", "freeze"):
        if options[name]:
            found[name] = names(options[name])
    decays = dict(options["weight_decay"])
    if decays:
        alone = decays.keys() == {""}
        found["weight_decay"] = decays[""] if alone else {k or "*": v for k, v in decays.items()}
    return found | dict(options["hyperparameters"])
