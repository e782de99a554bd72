"""The debugger: runs plans a point at a time, forwards and backwards. It knows no protocol.

Bottom up: `node` is a version of a tensor, `versions` has those of named ones; `points` says where
a plan can stop, `activation` is one run of one; `executor` runs an op on a device, `rerun` again
over other operands; `history` has what was run, and the way back; `changes` and `edits` what was
set by hand; `operations` and `machine` run on. `frames` and `scope` are what is seen from a point,
`stop_point` the one that is shown. `breakpoints`, `checks` and `problems` say what stops a run,
`runner` goes there, `full_speed` without looking, `goto` past what lies between; `reloading` goes
on with another text. `debugger` has all of these, and the commands. `kernel` leads into one.
"""
