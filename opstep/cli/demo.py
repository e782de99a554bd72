"""``opstep demo``: a trained network on real data, in async and in debug mode."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from opstep.cli.common import (
    PROGRAM,
    command,
    console,
    duration,
    emit_json,
    json_option,
    watch_compiler,
)

if TYPE_CHECKING:
    from rich.text import Text

    from opstep.api.program import Program, Result

SHADES = " .:-=+*#%@"  # of a pixel, 0 to 16
WIDE = 18  # columns that a drawn digit takes


@command(
    "demo",
    examples=[
        ("opstep demo", "the tour"),
        ("opstep demo --json", "its figures as JSON"),
    ],
    codes={PROGRAM: "the two modes gave different bits, or the accuracy is wrong"},
)
@json_option
def demo(as_json: bool) -> int | None:
    """Run a trained network on real data, in async and in debug mode.

    LeNet reads 500 handwritten digits that it has not seen in training. The first run compiles the
    kernels, which takes a few seconds; later runs use the cache.
    """
    from opstep.api.program import load
    from opstep.api.sources import load_params
    from opstep.runtime import arrays

    folder = data_folder()
    digits = arrays.read_npz(folder / "digits.npz")
    images, labels = digits["test_images"], digits["test_labels"]
    program = load(folder / "lenet.opg")
    load_params(program, str(folder / "lenet.safetensors"))

    with watch_compiler():
        fast, fast_s = timed(program, images, "async", repeat=20)
        stopped, stopped_s = timed(program, images, "debug", repeat=3)
    right = int((fast["digits"] == labels).sum())
    same = all(fast[name].tobytes() == stopped[name].tobytes() for name in fast)
    figures = {
        "ops": len(fast.plan.steps),
        "digits": len(labels),
        "right": right,
        "accuracy": right / len(labels),
        "same_bits": same,
        "async_s": fast_s,
        "debug_s": stopped_s,
    }
    if as_json:
        emit_json(figures)
    else:
        show(figures, images, labels, fast)
    return None if same and right / len(labels) > 0.98 else PROGRAM


def data_folder() -> Path:
    """Where the network, its weights and the digits are."""
    return Path(__file__).resolve().parent.parent / "data"


def timed(program: Program, images: np.ndarray, mode: str, repeat: int) -> tuple[Result, float]:
    """The result of graph main, and the median of the seconds that a run takes once warm."""
    seconds = []
    for _ in range(repeat + 1):
        start = time.perf_counter()
        result = program.run("main", {"images": images}, mode=mode)
        seconds.append(time.perf_counter() - start)
    return result, sorted(seconds[1:])[repeat // 2]


# --- what is printed ------------------------------------------------------------------------------


def show(figures: dict[str, Any], images: np.ndarray, labels: np.ndarray, result: Result) -> None:
    from rich.panel import Panel
    from rich.text import Text

    out = console(markup=True)
    count = figures["digits"]
    out.print(Panel.fit(Text("opstep: LeNet reads handwritten digits", "bold"), style="cyan"))
    out.print(
        f"The network is a text of {figures['ops']} ops. It was trained on 1,297 digits and reads\n"
        f"{count} others here. A few of them, and its predictions:\n"
    )
    out.print(gallery(images, labels, result, out.width))
    colour = "green" if figures["accuracy"] > 0.98 else "red"
    rate = f"{count / figures['async_s']:,.0f} digits a second"
    verdict = "[bold green]the same bits" if figures["same_bits"] else "[bold red]DIFFERENT BITS"
    for what, value, meaning in (
        ("accuracy", f"[bold {colour}]{figures['accuracy']:.1%}[/]", f"{figures['right']} right"),
        ("async mode", duration(figures["async_s"]), f"all ops queued, memory reused: {rate}"),
        ("debug mode", duration(figures["debug_s"]), "op by op, every tensor kept, NaN-filled"),
        ("both give", f"{verdict}[/]", ""),
    ):
        pad = " " * (9 - len(Text.from_markup(value)))
        out.print(f"  {what:<12}{value}{pad}{meaning}".rstrip())
    out.print("\n[bold]Next:[/]")
    for line, meaning in next_commands():
        line = started_as() + line.removeprefix("opstep")
        out.print(Text(f"  {line}", "cyan"), soft_wrap=True)
        out.print(Text(f"      {meaning}", "dim"), soft_wrap=True)


def gallery(images: np.ndarray, labels: np.ndarray, result: Result, width: int) -> Text:
    """Some digits as text, side by side; one that is misread among them, if there is one."""
    from rich.text import Text

    guesses, sure = result["digits"], result["probabilities"].max(axis=1)
    right = guesses == labels
    wrong = np.flatnonzero(~right)[:1]
    room = max(1, min(6, (width - 2) // WIDE) - len(wrong))
    chosen = [*np.flatnonzero(right)[:room], *wrong]
    text = Text()
    for row in range(8):
        for k in chosen:
            line = "".join(SHADES[int(p) * (len(SHADES) - 1) // 16] * 2 for p in images[k][row])
            text.append(f"  {line}", "bold" if right[k] else "bold red")
        text.append("\n")
    for k in chosen:
        caption = f"{guesses[k]} ({sure[k]:.0%})" + ("" if right[k] else f", is {labels[k]}")
        text.append(f"  {caption:<{WIDE - 2}}", "green" if right[k] else "red")
    return text.append("\n")


def started_as() -> str:
    """What to type for ``opstep``: its path where the shell does not find it by name."""
    if shutil.which("opstep"):
        return "opstep"
    command = Path(sys.executable).parent / "opstep"
    if not command.is_file():
        return f"{sys.executable} -m opstep"
    current = Path.cwd()
    return str(command.relative_to(current) if command.is_relative_to(current) else command)


def next_commands() -> list[tuple[str, str]]:
    """Command lines to try, with paths that work from the present folder."""
    folder = data_folder()
    current = Path.cwd()
    if folder.is_relative_to(current):
        folder = folder.relative_to(current)
    program = folder / "lenet.opg"
    run = f"opstep run {program} --params {folder / 'lenet.safetensors'}"
    return [
        (
            f"{run} --input images={folder / 'digits.npz'}:test_images",
            "the same from the command line; add --mode debug, or --output digits=digits.npy",
        ),
        (
            f"{run} -i images={folder / 'digits.npz'}:test_images --workspace demo.db "
            "--trace demo.pftrace",
            "recorded: then `opstep ws demo.db` and `opstep trace demo.pftrace`",
        ),
        (f"opstep check {program}", "all errors of a file; break a line and see"),
        (
            f"opstep plan {program} --symbol N=4",
            "streams, waits and memory, and the proof that nothing races",
        ),
        ("opstep ops conv2d", "what an op does; `opstep ops` lists them all"),
    ]
