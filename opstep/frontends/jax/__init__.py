"""Functions of JAX as programs. Only this folder imports jax, and only when one is met.

`importing` is what users call. `tracing` has JAX trace a function, `arguments` names its leaves,
`assembling` puts a program together. `translator` writes a graph for a jaxpr, by the `rules` for
single primitives, by `calls` for jaxprs that equations have, and by `control` for loops and
branches; `idioms` joins what it wrote. What is known at import (`values`) is computed in `folding`;
`origins` has Python's lines, which `tracebacks` reads; `closures` has the names of arrays that a
function reads from around it.
"""
