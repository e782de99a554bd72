"""The debugger: runs plans a point at a time, forwards and backwards. It knows no protocol.

Bottom up: `node` versions of tensors; `points` where a plan can stop; `executor` runs one op on a
device; `history` what was run, and how to look back; `machine` runs on; `frames`, `scope` what is
seen from a point; `breakpoints`, `checks`, `watching` what stops a run; `travel`, `debugger` the
commands. Beside it: `expressions` and `text`; `verdict` and `tracing` of NaNs; `lockstep` of two
runs; `kernel`, into one.
"""
