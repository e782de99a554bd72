"""The debugger: runs plans a point at a time, forwards and backwards. It knows no protocol.

Bottom up: `activation` is one run of a plan, with the points where it can stop and the nodes that
it computed; `executor` runs an op on a device, `rerun` again over other operands; `history` has
what was run, and the way back; `changes` what was set by hand; `machine` runs on. `frames` and
`scope` are what is seen from a point, `stop_point` the one that is shown. `breakpoints` and
`checks` say what stops a run, `runner` goes there, `goto` past what lies between; `reloading` goes
on with another text. `debugger` has all of these, and the commands. `kernel` leads into one.
"""
