"""``python -m opstep.editors.model FILE TARGET.opg``: the program of a model (.pt2, .onnx) as a
text, for an editor to show. Its weights are left where they are.
"""

from __future__ import annotations

import sys
from pathlib import Path

from opstep.runtime.ir.diagnostics import OpstepError


def main(file: str, target: str) -> int:
    """Writes the text; gives the exit code."""
    from opstep.api.files import text_for
    from opstep.api.program import load
    from opstep.runtime import arrays

    path = Path(target).absolute()
    try:
        text = text_for(load(file), path.parent)
        path.parent.mkdir(parents=True, exist_ok=True)
        arrays.replace_text(path, text)
    except (OpstepError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
