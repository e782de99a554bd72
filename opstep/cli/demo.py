"""``opstep demo``: a trained network on real data, in async and in debug mode."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

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

SHADES = " .:-=+*#%@"  # of a pixel, 0 to 16
SHOWN = 6  # digits drawn


@command(
    "demo",
    short_help="Run a trained network on real data, in async and in debug mode.",
    examples=[
        ("opstep demo", "the tour"),
        ("opstep demo --json", "its figures, for a machine"),
    ],
    codes={PROGRAM: "the two modes gave different bits, or the accuracy is not as it should be"},
)
@json_option
def demo(as_json: bool) -> int | None:
    """Run a trained network on real data, in async and in debug mode.

    LeNet reads 500 handwritten digits that it has not seen in training. The first run compiles
    the kernels, which takes some seconds; they are kept.
    """
    import opstep
    from opstep.cli.inputs import load_params
    from opstep.runtime import arrays

    folder = data_folder()
    digits = arrays.read_npz(folder / "digits.npz")
    images, labels = digits["test_images"], digits["test_labels"]
    program = opstep.load(folder / "lenet.opg")
    load_params(program, str(folder / "lenet.safetensors"))

    with watch_compiler():
        fast, fast_s = timed(program, images, "async", repeat=20)
        stopped, stopped_s = timed(program, images, "debug", repeat=3)
    guesses, probabilities = fast
    right = int((guesses == labels).sum())
    same = all(a.tobytes() == b.tobytes() for a, b in zip(fast, stopped, strict=True))
    figures = {
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
        show(figures, images, labels, guesses, probabilities)
    return None if same and right / len(labels) > 0.98 else PROGRAM


def data_folder() -> Path:
    """Where the network, its weights and the digits are."""
    return Path(__file__).resolve().parent.parent / "data"


def timed(program: Any, images: np.ndarray, mode: str, repeat: int) -> tuple[list[Any], float]:
    """The results of graph main, and the median of the seconds that a run takes once warm."""
    seconds = []
    for _ in range(repeat + 1):
        start = time.perf_counter()
        result = program.run("main", {"images": images}, mode=mode)
        seconds.append(time.perf_counter() - start)
    return [np.asarray(a) for a in result.outputs], sorted(seconds[1:])[repeat // 2]


# --- what is printed ------------------------------------------------------------------------------


def show(
    figures: dict[str, Any], images: Any, labels: Any, guesses: Any, probabilities: Any
) -> None:
    from rich.panel import Panel
    from rich.text import Text

    out = console()
    count = figures["digits"]
    out.print(Panel.fit(Text("opstep: LeNet reads handwritten digits", "bold"), style="cyan"))
    out.print(
        f"The network is a text file of 13 ops, its weights were trained on 1,297 digits,\n"
        f"and here it reads the {count} others. A few of them, and what it takes them for:\n"
    )
    out.print(gallery(images, labels, guesses, probabilities))
    good = "[bold green]" if figures["accuracy"] > 0.98 else "[bold red]"
    out.print(
        f"\n  accuracy      {good}{figures['accuracy']:.1%}[/]  {figures['right']} of {count} right"
    )
    rate = count / figures["async_s"]
    out.print(
        f"  async mode    {duration(figures['async_s']):>8}  ops queued on streams, memory reused: "
        f"{rate:,.0f} digits a second"
    )
    out.print(
        f"  debug mode    {duration(figures['debug_s']):>8}  one op at a time, every tensor kept, "
        "memory filled with NaN first"
    )
    verdict = "[bold green]the same bits" if figures["same_bits"] else "[bold red]DIFFERENT BITS"
    out.print(f"  both give     {verdict}[/]\n")
    out.print("[bold]Next:[/]")
    for line, what in next_commands():
        out.print(Text(f"  {line}", "cyan"))
        out.print(Text(f"      {what}", "dim"))


def gallery(images: Any, labels: Any, guesses: Any, probabilities: Any) -> Any:
    """Some digits as text, side by side; one that is misread among them, if there is one."""
    from rich.text import Text

    wrong = np.flatnonzero(guesses != labels)[:1]
    chosen = [*np.flatnonzero(guesses == labels)[: SHOWN - len(wrong)], *wrong]
    text = Text()
    for row in range(8):
        text.append("  ")
        for k in chosen:
            line = "".join(SHADES[int(p) * (len(SHADES) - 1) // 16] * 2 for p in images[k][row])
            text.append(line + "  ", "bold" if guesses[k] == labels[k] else "bold red")
        text.append("\n")
    text.append("  ")
    for k in chosen:
        ok = guesses[k] == labels[k]
        told = f"{guesses[k]} ({probabilities[k].max():.0%})" + ("" if ok else f", is {labels[k]}")
        text.append(f"{told:<18}", "green" if ok else "red")
    return text


def next_commands() -> list[tuple[str, str]]:
    """Command lines to try, with paths that work from the present folder."""
    folder = data_folder()
    here = Path.cwd()
    if folder.is_relative_to(here):
        folder = folder.relative_to(here)
    program = folder / "lenet.opg"
    run = f"opstep run {program} --params {folder / 'lenet.safetensors'}"
    return [
        (
            f"{run} --input images={folder / 'digits.npz'}:test_images",
            "the same from the command line; add --mode debug, or --output digits=digits.npy",
        ),
        (f"opstep check {program}", "all errors of a file; break a line and see"),
        (
            f"opstep plan {program} --symbol N=4",
            "streams, waits and memory, and the proof that nothing races",
        ),
        ("opstep ops conv2d", "what an op does; `opstep ops` lists them all"),
    ]
