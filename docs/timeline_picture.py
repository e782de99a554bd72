"""Makes docs/images/timeline.png: examples/unet_two.opg on two streams, in the Perfetto UI, as
`opstep run examples/unet_two.opg -i random -s N=8 --streams 2 --threads 1 --steps 24` runs it.

python docs/timeline_picture.py                 # needs Chromium; pngquant makes it smaller
python docs/timeline_picture.py TRACE PICTURE   # of a trace recorded elsewhere, such as on a GPU:
opstep run examples/unet_two.opg -i random -s N=64 --device cuda --steps 12 --trace TRACE
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

import opstep
from opstep.trace.viewer.engine import Engine
from opstep.trace.viewer.server import Server
from opstep.trace.viewer.slice_positions import SlicePosition

ROOT = Path(__file__).parent.parent
TARGET = ROOT / "docs" / "images" / "timeline.png"
BATCH, STEPS, WARM = 8, 24, 4
WIDTH, HEIGHT, SCALE = 1500, 1200, 1.4
PANEL = 480  # where the panel of what is selected begins, in pixels from above

# The step that took the least: others may have been disturbed by what else this machine does.
STEP = "select ts, dur, extract_arg(arg_set_id, 'debug.step') from slice where category = 'step'"
# In it, an op of the ways up that waited for one of the other stream; else the longest op.
SELECTED = """
select op.ts, op.dur, op.name from slice as op
where op.category = 'op' and op.ts between {begin} and {end}
order by op.name like '%/joined2 = concat' and exists (
  select 1 from flow join slice as other on other.id = flow.slice_out
  where flow.slice_in = op.id and other.category = 'op'
) desc, op.dur desc limit 1
"""
# Scrolls the program to its graphs: it was laid out before the panel had its height.
PROGRAM = "document.querySelector('pre.language-py').scrollTop = 1e6"


def record(trace: Path) -> None:
    program = opstep.load("examples/unet_two.opg")
    rng = np.random.default_rng(0)
    inputs = {name: rng.standard_normal((BATCH, 1, 64, 64), np.float32) for name in "ab"}
    how: dict[str, Any] = {"streams": 2, "threads": 1}
    program.run("main", inputs, steps=WARM, **how)  # compiles the kernels
    with opstep.Recording(trace=trace) as recording:
        program.run("main", inputs, steps=STEPS, recording=recording, **how)


def choose(trace: Path) -> SlicePosition:
    """What is selected: in the middle of what is in view, where the UI puts it anyway."""
    with Engine(trace) as engine:
        begin, took, step = min(engine.query(STEP).rows, key=lambda row: row[1])
        asked = SELECTED.format(begin=begin, end=begin + took)
        ts, dur, name = engine.query(asked).rows[0]
    half = ts + dur // 2 - begin + took // 50
    return SlicePosition(
        ts, dur, (begin - took // 50, begin - took // 50 + 2 * half), name, "", "", step, 1
    )


class Browser:
    """Chromium without a window, driven by its DevTools protocol over a pair of pipes."""

    def __init__(self, program: str, profile: Path):
        read, self._to = os.pipe()
        self._from, write = os.pipe()
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"]
        flags += ["--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"]
        # It reads from descriptor 3 and writes to 4.
        script = f'exec "$@" 3<&{read} 4>&{write}'
        self._child = subprocess.Popen(
            ["bash", "-c", script, "bash", program, *flags],
            pass_fds=(read, write),
            stderr=subprocess.DEVNULL,
        )
        os.close(read)
        os.close(write)
        self._left = b""
        self._calls = 0
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._calls += 1
        message = {"id": self._calls, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self._left:
                chunk = os.read(self._from, 1 << 16)
                if not chunk:
                    sys.exit("Chromium has ended")
                self._left += chunk
            answer, _, self._left = self._left.partition(b"\0")
            told = json.loads(answer)
            if told.get("id") == self._calls:
                if "error" in told:
                    sys.exit(f"{method}: {told['error']['message']}")
                return told["result"]

    def value(self, script: str) -> Any:
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        return found["result"].get("value")

    def wait_for(self, text: str, seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while not self.value(f"document.body.innerText.includes({json.dumps(text)})"):
            if time.monotonic() > end:
                sys.exit(f"the page never showed {text!r}")
            time.sleep(0.2)

    def press(self, key: str) -> None:
        about = {"key": key, "code": f"Key{key.upper()}", "windowsVirtualKeyCode": ord(key.upper())}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, **about)

    def drag(self, element: str, to: int) -> None:
        """Takes an element by its middle to another height."""
        script = (
            f"JSON.stringify(document.querySelector({json.dumps(element)}).getBoundingClientRect())"
        )
        box = json.loads(self.value(script))
        x = box["x"] + box["width"] / 2
        moves = [("mousePressed", box["y"] + box["height"] / 2), ("mouseMoved", to)]
        for kind, y in [*moves, ("mouseReleased", to)]:
            about = {"x": x, "y": y, "button": "left", "buttons": 1, "clickCount": 1}
            self.call("Input.dispatchMouseEvent", type=kind, **about)

    def close(self) -> None:
        self._session = None
        self.call("Browser.close")
        self._child.wait(20)


def picture(browser: Browser, address: str) -> bytes:
    metrics = {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": SCALE, "mobile": False}
    browser.call("Emulation.setDeviceMetricsOverride", **metrics)
    browser.call("Page.navigate", url=address)
    browser.wait_for(" memory")
    time.sleep(2)  # it draws in several passes
    browser.press("q")  # opens the panel with what is selected
    browser.wait_for("Preceding Flows")
    browser.drag(".pf-split-panel__handle", PANEL)
    browser.value(PROGRAM)
    time.sleep(3)
    return base64.b64decode(browser.call("Page.captureScreenshot")["data"])


def main() -> None:
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        sys.exit("Chromium is needed to make the picture")
    given = [Path(argument).resolve() for argument in sys.argv[1:3]]
    os.chdir(ROOT)  # the picture shows the program's name as it was given
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        trace, target = given or (Path(folder) / "unet.pftrace", TARGET)
        if not given:
            record(trace)
        with Server(trace, position=choose(trace)) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            browser = Browser(program, Path(folder) / "profile")
            target.write_bytes(picture(browser, server.address))
            browser.close()
            server.shutdown()
    if quantise := shutil.which("pngquant"):
        subprocess.run([quantise, "--force", "--output", target, "64", target], check=True)


if __name__ == "__main__":
    main()
