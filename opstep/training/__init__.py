"""Training: data in batches, the loop that runs a step on each, and what looks at it.

`tables`, with `files`, `arrow` and `folders`, is what data comes from; `fitting` makes it fit the
inputs of a loss, `indices` judges labels; `data` has the batches, `prefetch` makes them ahead.
`preparing` puts together what `train` asks for. `loop` runs it; `validation` measures. Observers of
the loop: `progress`, `recorded`, `best`.
"""
