"""Two runs beside each other: what each op gave in both, and the first op that gave something else.

`taps` copies results on the op's own stream right behind the op; `elements` compares two arrays;
`verdict` says what the hazard checker knows of a difference.
"""
