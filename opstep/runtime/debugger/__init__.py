"""The debugger: runs plans a point at a time, forwards and backwards. It knows no protocol.

`node` versions of tensors; `points` where a plan can stop; `executor` runs one op on a device;
`machine` moves from point to point and back; `breakpoints` say where to stop; `debugger` is what
people, editors and tests drive.
"""
