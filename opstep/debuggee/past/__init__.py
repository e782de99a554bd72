"""The past of a Python script: a recorder of its lines, and what was then."""
