"""Where a script is: its lines on the stack, and in tracebacks."""

from __future__ import annotations

import os
import re
import sys
import types

FRAMEWORKS = ("torch", "jax", "jaxlib", "flax")  # packages whose lines are nobody's own
_OURS = ("opstep.", "torch._dynamo.")  # modules whose frames nobody wants to see, nor in tracebacks
_REST = re.compile("torch_dynamo_resume_in_(.*)_at_[0-9]+")  # of a function, made by Dynamo


def own_frames(traceback: types.TracebackType | None) -> types.TracebackType | None:
    """A traceback without what runs the script, and what compiles its parts."""
    levels = []
    while traceback is not None:
        levels.append(traceback)
        traceback = traceback.tb_next
    rest = None
    for one in reversed(levels):
        frame = one.tb_frame
        found = _REST.fullmatch(rest.tb_frame.f_code.co_name) if rest is not None else None
        resumed = found is not None and found[1] == _REST.sub(r"\1", frame.f_code.co_name)
        if not resumed and not str(frame.f_globals.get("__name__")).startswith(_OURS):
            rest = types.TracebackType(rest, frame, one.tb_lasti, one.tb_lineno)
    return rest


def line_now(ran: tuple[str, int] | None = None) -> tuple[str, int] | None:
    """Where the script is: the innermost line that is neither a framework's nor ours. `ran`: the
    line of what was run; a function that goes on behind a break of the graph does not know its own.
    """
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and is_hidden(frame):
        frame = frame.f_back
    if frame is None:
        return None
    code = frame.f_code
    if ran is not None and ran[0] == code.co_filename and _REST.fullmatch(code.co_name):
        return ran
    return code.co_filename, frame.f_lineno


def is_hidden(frame: types.FrameType) -> bool:
    """Whether it is a framework's, or ours."""
    file, module = frame.f_code.co_filename, str(frame.f_globals.get("__name__"))
    return module.startswith(_OURS) or file.startswith(("<", *_folders()))


def _folders() -> tuple[str, ...]:
    """Where the files of frameworks are that were imported."""
    found = (getattr(sys.modules.get(name), "__file__", None) for name in FRAMEWORKS)
    return tuple(f"{os.path.dirname(file)}/" for file in found if file)
