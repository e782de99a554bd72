"""Sessions on Python scripts: debugpy's, with a proxy in front that adds what opstep knows.

`proxy` passes messages on between a client and ``debugpy.adapter``; `channel` leads to the helper
in the script's process (`opstep.debuggee`), which knows of tensors, NaNs and the past.
"""
