"""Python scripts that opstep runs, whatever framework they use.

`script` runs one as Python does. `frameworks` has a framework's computations run on opstep as soon
as the script imports it; `options` says how. `watching` does what is around each run, and `frames`
knows the script's lines.
"""
