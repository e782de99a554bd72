"""Random tensors. Each element is a function of seed, step and position (Philox), so runs repeat
exactly on any number of threads and on any device.
"""
