"""The language server: what editors are told about programs while they are written.

registry.py    what a feature is: one decorated function
project.py     what the server knows: open files, files of folders, settings, live values
file.py        one text: its items, its positions
item.py        one graph or declaration, parsed and checked by itself
lines.py       offsets and an editor's positions
environment.py what the items of a file are checked against
checking.py    messages about a file; unused.py: those that are not errors
diagnostics.py messages as the protocol has them; scheduler.py: when texts are checked
completions/   what could stand at the cursor
fixes/         what can be done about a message
formatting.py  the standard layout, as edits
marks.py       the words of a statement, each with what it is
occurrences.py what stands at a place, and where else
locations.py   where things are that a file names: in the library, in opstep's own code
derivation.py  how the dims of a result come about
recorded.py    what the last recorded run found out about a value
renaming.py    what can be renamed, to what, and where the edits are
tokens.py      the meaning of each word as colours
hovers/        what is said about a word
features/      the protocol's requests, a file a family
custom/        requests of our own, ``opstep/…``; arguments.py checks what came with them
protocol.py    the protocol's own requests
server.py      sessions on standard input and output, or on a port of this machine
"""
