"""Ops that ranks compute together: reductions over a group, parts of tensors sent to each other."""
