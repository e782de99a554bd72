"""Where a NaN, an infinity or a silent loss was born, why, and what becomes of it, judged by
element. It looks at a step that the debugger's machine runs; the search for the bad step is in
`opstep.hunting`.
"""
