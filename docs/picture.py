"""Makes pictures of a terminal for the README: `opstep demo`, `opstep debug`, `opstep hunt`.

python docs/picture.py [NAME ...]     # needs Chromium; pngquant, if there, makes them smaller
"""

from __future__ import annotations

import io
import os
import pty
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

FOLDER = Path(__file__).parent / "images"
COLUMNS = 126
ENTROPY = "examples/entropy.opg --input random --symbol N=4 --symbol K=5"
PICTURES = {  # what is typed: the command, and then to it
    "demo": ("opstep demo", []),
    "debug": (
        f"opstep debug {ENTROPY}",
        ["break information", "run", "next", "next", "reverse-next", "print stats(p).min",
         "set p = where(p > 0, p, 1)", "backtrace", "continue"],
    ),
    "hunt": (f"opstep hunt {ENTROPY}", []),
}  # fmt: skip
STYLE = (
    "margin: 0; padding: 22px 26px; background: #16181d; color: #e6e6e6; "
    "font: 14px/1.25 'DejaVu Sans Mono', monospace"
)


def recorded(command: list[str], typed: list[str]) -> str:
    """What a command writes to a terminal of `COLUMNS`, with its colours."""
    screen, terminal = pty.openpty()
    size = {"COLUMNS": str(COLUMNS), "LINES": "60", "TERM": "xterm-256color"}
    child = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=terminal, stderr=terminal,
        env={**os.environ, **size}, cwd=FOLDER.parents[1],
    )  # fmt: skip
    os.close(terminal)
    assert child.stdin is not None
    child.stdin.write("".join(f"{line}\n" for line in typed).encode())
    child.stdin.close()
    text = b""
    try:
        while chunk := os.read(screen, 65536):
            text += chunk
    except OSError:  # how Linux says that the other end is closed
        child.wait()
    return re.sub(r"\x1b\[[0-9;]*[A-HJKf]", "", text.decode()).replace("\r\n", "\n")


def page(command: str, text: str) -> str:
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(Text(f"$ {command}", "bold green"))
    console.print(Text.from_ansi(text))
    code = console.export_html(theme=MONOKAI, inline_styles=True, code_format="{code}")
    return f'<meta charset="utf-8"><body style="{STYLE}"><pre style="margin: 0">{code}</pre>'


def take(name: str, browser: str) -> None:
    """Makes one picture."""
    line, typed = PICTURES[name]
    command = [sys.executable, "-m", *line.split()]
    text = recorded(command, typed)
    rows, target = text.count("\n") + 2, FOLDER / f"{name}.png"
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "page.html"
        source.write_text(page(line, text))
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        flags += ["--force-device-scale-factor=1.5", f"--window-size=1122,{rows * 18 + 44}"]
        flags += [f"--user-data-dir={folder}/profile", f"--screenshot={target}"]
        subprocess.run([browser, *flags, source.as_uri()], check=True, capture_output=True)
    if quantise := shutil.which("pngquant"):
        subprocess.run([quantise, "--force", "--output", target, "32", target], check=True)


def main() -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("Chromium is needed to make the pictures")
    for name in sys.argv[1:] or PICTURES:
        take(name, browser)


if __name__ == "__main__":
    main()
