"""The hunt for NaNs, infinities and silent losses: a run at full speed with flags, the bad step
again under the debugger, and the report. How a bad element is traced to its cause is in
`runtime.nan`.
"""

from opstep.hunting.report import Hunt
from opstep.hunting.search import hunt

__all__ = ["Hunt", "hunt"]
