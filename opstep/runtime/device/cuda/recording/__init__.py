"""Recording of a run on a GPU: kernels that read its clock and take statistics between those of
the ops, and how what they leave becomes records.
"""
