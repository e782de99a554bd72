"""Makes docs/images/datasette*.png: LeNet is trained, and what its workspace shows is pictured.

python docs/datasette_picture.py      # needs Chromium; pngquant, if there, makes them smaller
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

import opstep

IMAGES = Path(__file__).parent / "images"
DATA = Path(opstep.__file__).parent / "data"
SEED, BATCH, STEPS = 0, 64, 400

LOSS = """
# What training makes small.
graph loss(images: u8[N, 8, 8], labels: i32[N]) -> f32[] {
  pixels = cast(images, dtype=f32)
  scaled = mul(pixels, 0.0625)
  x = reshape(scaled, shape=[N, 1, 8, 8])
  logits = lenet(x)
  loss = softmax_cross_entropy(logits, labels)
  return loss
}
"""


class Picture(NamedTuple):
    name: str
    address: str
    width: int
    height: int


PICTURES = (
    Picture("datasette.png", "/data/history_of_a_tensor?run=1&tensor=d_conv2_w", 1240, 888),
    Picture("datasette_program.png", "/data/line_by_line?run=4", 1500, 1300),
    Picture("datasette_home.png", "/", 1240, 740),
)


def training(rate: float) -> opstep.Program:
    """LeNet with a graph that makes one step of gradient descent."""
    text = (DATA / "lenet.opg").read_text() + LOSS
    program = opstep.loads(text)
    names = list(program.params)
    gradient = program.with_grad("loss", names)["loss_grad"]
    short = [name.replace(".", "_") for name in names]
    lines = [f"  loss, {', '.join(f'd_{s}' for s in short)} = loss_grad(images, labels)"]
    for name, s in zip(names, short, strict=True):
        lines += [f"  step_{s} = mul(d_{s}, {rate})", f"  new_{s} = sub({name}, step_{s})"]
        lines += [f"  {name} <- new_{s}"]
    head = "# One step of gradient descent.\ngraph train(images: u8[N, 8, 8], labels: i32[N])"
    step = "\n".join([f"{head} -> f32[] {{", *lines, "  return loss", "}"])
    return opstep.loads(f"{text}\n{gradient}\n\n{step}\n", "train_lenet.opg")


def train(workspace: Path, rate: float, steps: int, seed: int = SEED) -> opstep.Program:
    program, rng = training(rate), np.random.default_rng(seed)
    with np.load(DATA / "digits.npz") as data, opstep.Recording(workspace=workspace) as recording:
        images, labels = data["train_images"], data["train_labels"]
        for _ in range(steps):
            chosen = rng.integers(0, len(images), BATCH)
            batch = {"images": images[chosen], "labels": labels[chosen]}
            program.run("train", batch, seed=seed, recording=recording)
    return program


def record(workspace: Path) -> None:
    """Two trainings, one that goes wrong, and a look at what was learned."""
    trained = train(workspace, 0.05, STEPS)
    train(workspace, 0.05, STEPS, seed=1)
    train(workspace, 3e5, 40)
    program = opstep.load(DATA / "lenet.opg")
    for name in program.params:
        program.params[name] = trained.params[name]
    with np.load(DATA / "digits.npz") as data, opstep.Recording(workspace=workspace) as recording:
        inputs = {"images": data["test_images"], "labels": data["test_labels"]}
        program.run("accuracy", inputs, recording=recording)


def take(browser: str, address: str, picture: Picture, folder: str) -> None:
    target = IMAGES / picture.name
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    flags += ["--force-device-scale-factor=1.5", f"--window-size={picture.width},{picture.height}"]
    flags += [f"--user-data-dir={folder}/profile", f"--screenshot={target}"]
    subprocess.run([browser, *flags, address], check=True, capture_output=True)
    if quantise := shutil.which("pngquant"):
        subprocess.run([quantise, "--force", "--output", target, "64", target], check=True)


def main() -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("Chromium is needed to make the pictures")
    with tempfile.TemporaryDirectory() as folder:
        record(Path(folder) / "runs.db")
        command = [sys.executable, "-m", "opstep", "ws", "runs.db", "open", "--no-browser"]
        with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as server:
            said = server.stdout.readline() if server.stdout else ""
            (root,) = re.findall(r"http://[\d.:]+", said)
            for picture in PICTURES:
                take(browser, root + picture.address, picture, folder)
            server.send_signal(signal.SIGINT)


if __name__ == "__main__":
    main()
