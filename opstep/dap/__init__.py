"""The debugger for editors: a server of the Debug Adapter Protocol (DAP).

It only translates: what a step, a frame or a breakpoint is, `opstep.runtime.debugger` knows.

wire.py        messages on a stream, with limits
checking.py    JSON into dataclasses, and back
registry.py    what a request is: one decorated function, beside the capability it stands for
session.py     one client: its state, its threads, events to it; what handlers are given
debuggee.py    the run: how it goes, stops and ends
frames.py      numbers of frames; references.py: of anything else, for as long as a stop lasts
variables.py   what a list of variables shows; tensor_origins.py: where its tensors come from
client_breakpoints.py   those that the client asked for, whatever runs
requests/      the requests, a file a family
server.py      sessions on standard input and output, or on a port of this machine
"""
