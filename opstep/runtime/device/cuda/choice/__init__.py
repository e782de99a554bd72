"""Which implementation of an op runs on a GPU: our kernel, a library's, or the fastest that
`--autotune` measured.
"""
