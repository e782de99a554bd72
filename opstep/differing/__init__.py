"""Two runs of a program side by side: where their results first differ, and where a dtype loses
precision. `lockstep` drives both runs, `taps` copies results on the op's own stream, `elements`
compares arrays, `verdict` adds what the hazard checker knows of a difference.
"""

from opstep.differing.diff import diff, settings

__all__ = ["diff", "settings"]
