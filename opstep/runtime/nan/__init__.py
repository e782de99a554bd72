"""The birth of a NaN, an infinity or a silent loss, its cause, and what becomes of it, judged by
element. It looks at a step that the debugger's machine runs; the search for the bad step is in
`opstep.hunting`.
"""
