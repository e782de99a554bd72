"""The choice of an op's implementation on a GPU: our kernel, a library's, or the fastest that
`--autotune` measured.
"""
