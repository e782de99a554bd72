"""Where the lines of a text are in another one that it was edited to."""

from __future__ import annotations

from difflib import SequenceMatcher
from pathlib import Path

MOST_COMPARED = 2000  # lines on each side, between what is the same at the begin and at the end
LARGEST = 16 << 20  # bytes of a file that is read


def mapped_line(line: int, before: str, after: str) -> int:
    """The line of `after` that a line of `before`, from 1, became; of one that was taken out, the
    line that stands in its place.
    """
    if before == after:
        return line
    old, new = before.splitlines(), after.splitlines()
    k = line - 1
    same = 0
    while same < min(len(old), len(new)) and old[same] == new[same]:
        same += 1
    if k < same:
        return line
    left = 0
    while left < min(len(old), len(new)) - same and old[-1 - left] == new[-1 - left]:
        left += 1
    if k >= len(old) - left:
        return line + len(new) - len(old)
    old, new = old[same : len(old) - left], new[same : len(new) - left]
    if max(len(old), len(new)) > MOST_COMPARED:
        return min(line, same + len(new) + 1)
    for _, first, last, start, stop in SequenceMatcher(None, old, new, False).get_opcodes():
        if first <= k - same < last:
            return same + min(start + (k - same - first), max(stop - 1, start)) + 1
    return line


def text_on_disk(path: str) -> str | None:
    """A file's text as it is now; None where there is no such file, or none to be read here."""
    try:
        file = Path(path)
        if not file.is_file() or file.stat().st_size > LARGEST:
            return None
        return file.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
