"""Makes docs/images/demo.png: what `opstep demo` shows, as a picture of a terminal.

python docs/picture.py      # needs Chromium; pngquant, if there, makes it smaller
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

TARGET = Path(__file__).parent / "images" / "demo.png"
COLUMNS = 126
STYLE = (
    "margin: 0; padding: 22px 26px; background: #16181d; color: #e6e6e6; "
    "font: 14px/1.25 'DejaVu Sans Mono', monospace"
)


def recorded(command: list[str]) -> str:
    """What a command writes to a terminal of `COLUMNS`, with its colours."""
    screen, terminal = pty.openpty()
    size = {"COLUMNS": str(COLUMNS), "LINES": "60", "TERM": "xterm-256color"}
    child = subprocess.Popen(command, stdout=terminal, env={**os.environ, **size})
    os.close(terminal)
    text = b""
    try:
        while chunk := os.read(screen, 65536):
            text += chunk
    except OSError:  # how Linux says that the other end is closed
        child.wait()
    return re.sub(r"\x1b\[[0-9;]*[A-HJKf]", "", text.decode()).replace("\r\n", "\n")


def page(text: str) -> str:
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(Text("$ opstep demo", "bold green"))
    console.print(Text.from_ansi(text))
    code = console.export_html(theme=MONOKAI, inline_styles=True, code_format="{code}")
    return f'<meta charset="utf-8"><body style="{STYLE}"><pre style="margin: 0">{code}</pre>'


def main() -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("Chromium is needed to make the picture")
    text = recorded([sys.executable, "-m", "opstep", "demo"])
    rows = text.count("\n") + 2
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "demo.html"
        source.write_text(page(text))
        TARGET.parent.mkdir(exist_ok=True)
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        flags += ["--force-device-scale-factor=1.5", f"--window-size=1122,{rows * 18 + 44}"]
        flags += [f"--user-data-dir={folder}/profile", f"--screenshot={TARGET}"]
        subprocess.run([browser, *flags, source.as_uri()], check=True, capture_output=True)
    if quantise := shutil.which("pngquant"):
        subprocess.run([quantise, "--force", "--output", TARGET, "32", TARGET], check=True)


if __name__ == "__main__":
    main()
