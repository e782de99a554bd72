"""Makes the data that the networks of this folder are trained with (docs/training.md).

    python examples/training_data.py unet unet.npz
    opstep train examples/unet.opg --data unet.npz:train --validate test

unet      pictures with three of the digits, enlarged, in noise; which pixels are ink
unet_two  two such pictures of the same digits; which pixels are ink, and which are at its edge
text      pieces of 129 bytes of pydoc_data/topics.py, Python's own help (PSF licence)

The digits are those of scikit-learn (CC BY 4.0, from the UCI repository). What the
test part is made of, a tenth as much, is held out from training: other digits, the text's end.
"""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path

import numpy as np

import opstep

DIGITS = Path(opstep.__file__).parent / "data" / "digits.npz"
SIDE = 64
Arrays = dict[str, np.ndarray]


def ink(count: int, rng: np.random.Generator, part: str = "train") -> np.ndarray:
    """[count, 64, 64], from 0 to 1: three digits each, at twice or three times their size."""
    with np.load(DIGITS) as data:
        digits = data[f"{part}_images"].astype(np.float32) / 16
    pictures = np.zeros((count, SIDE, SIDE), np.float32)
    for picture in pictures:
        for digit in digits[rng.integers(0, len(digits), 3)]:
            times = int(rng.integers(2, 4))
            larger = digit.repeat(times, 0).repeat(times, 1)
            y, x = rng.integers(0, SIDE - len(larger) + 1, 2)
            place = picture[y : y + len(larger), x : x + len(larger)]
            np.maximum(place, larger, out=place)
    return pictures


def seen(pictures: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """[N, 1, 64, 64]: paper of any brightness, ink that is darker, and noise."""
    paper, dark = rng.uniform(0.5, 1.0, (2, len(pictures), 1, 1)).astype(np.float32)
    noise = rng.normal(0, 0.05, pictures.shape).astype(np.float32)
    return (paper - dark * pictures + noise)[:, None]


def unet(count: int, rng: np.random.Generator, part: str = "train") -> Arrays:
    pictures = ink(count, rng, part)
    return {"x": seen(pictures, rng), "mask": (pictures >= 0.5).astype(np.int32)}


def unet_two(count: int, rng: np.random.Generator, part: str = "train") -> Arrays:
    pictures = ink(count, rng, part)
    mask = pictures >= 0.5
    inside = mask.copy()
    for axis in (1, 2):
        for by in (-1, 1):
            inside &= np.roll(mask, by, axis)
    both = {"a": seen(pictures, rng), "b": seen(pictures, rng)}
    return both | {"mask": mask.astype(np.int32), "edge": (mask & ~inside).astype(np.int32)}


def text(count: int, rng: np.random.Generator, part: str = "train") -> Arrays:
    """Pieces from anywhere in the first nine tenths of the text, or in the last."""
    spec = importlib.util.find_spec("pydoc_data.topics")
    assert spec is not None and spec.origin is not None
    written = np.frombuffer(Path(spec.origin).read_bytes(), np.uint8)
    end = len(written) * 9 // 10
    written = written[:end] if part == "train" else written[end:]
    first = rng.integers(0, len(written) - 129, count)
    return {"text": written[first[:, None] + np.arange(129)].astype(np.int32)}


KINDS = {"unet": unet, "unet_two": unet_two, "text": text}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("file", metavar="FILE.npz")
    parser.add_argument("--count", type=int, default=1000, help="how many to train on")
    arguments = parser.parse_args()
    make, rng = KINDS[arguments.kind], np.random.default_rng(0)
    columns = {}
    for part, count in ("train", arguments.count), ("test", max(1, arguments.count // 10)):
        made = make(count, rng, part)
        columns |= {f"{part}_{name}": array for name, array in made.items()}
    np.savez(arguments.file, **columns)


if __name__ == "__main__":
    main()
