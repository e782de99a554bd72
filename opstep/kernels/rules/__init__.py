"""Rules that declarations of all families share: axes, literals, indices out of range, and which
elements of its operands an element of a result depends on.
"""
