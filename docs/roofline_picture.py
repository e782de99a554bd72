"""Makes docs/images/roofline.png from figures that ``opstep bench`` measured:

opstep bench examples/unet.opg -s N=64 --device cuda --autotune --json > docs/images/roofline.json
python docs/roofline_picture.py      # pngquant, if there, makes it smaller
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from opstep.trace import roofline
from opstep.trace.bench import Ceilings, Measured

IMAGES = Path(__file__).parent / "images"
DEVICE = "NVIDIA H200"


def main() -> None:
    found = json.loads((IMAGES / "roofline.json").read_text())
    measured = [Measured(**{name: op[name] for name in Measured._fields}) for op in found["ops"]]
    roof = Ceilings(found["ceilings"]["bandwidth"], found["ceilings"]["arithmetic"])
    title = f"Graph {found['graph']} of {Path(found['file']).name}"
    below = f"{DEVICE}, {found['step_seconds'] * 1e3:.3g} ms a step; dots and %: share of the time"
    target = IMAGES / "roofline.png"
    roofline.draw(target, measured, roof, title, below)
    if quantise := shutil.which("pngquant"):
        subprocess.run([quantise, "--force", "--output", target, "64", target], check=True)


if __name__ == "__main__":
    main()
