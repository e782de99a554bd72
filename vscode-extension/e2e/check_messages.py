"""Holds captured DAP conversations against the protocol's schema: python check_messages.py FOLDER.

Each line of the folder's .jsonl files is one message.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/dap"))
import schema


def faults(path: Path) -> tuple[int, list[str]]:
    """The number of messages, and what is wrong with them."""
    found, count = [], 0
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        count += 1
        try:
            schema.check_message(json.loads(line))
        except (AssertionError, KeyError, ValueError) as error:
            found.append(f"{path.name}:{number}: {error}")
    return count, found


def main(folder: str) -> int:
    files = sorted(Path(folder).glob("*.jsonl"))
    results = [faults(path) for path in files]
    wrong = [text for _, found in results for text in found]
    count = sum(n for n, _ in results)
    print(f"{count} DAP messages of {len(files)} tests, {len(wrong)} against the schema")
    for text in wrong[:20]:
        print(text)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
