"""Optional statistics of a recorded tensor: quantiles, counts by sign, figures of channels. These
ops are internal: no program can name them.
"""
