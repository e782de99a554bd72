"""Stops of a Python session that debugpy has not: at methods of classes (`calls`), where watched
expressions change (`lines`), and at ops and modules of PyTorch, which may not be there yet
(`op_stops`); `opstep.frontends.torch.debugging.asking` does the latter.
"""
