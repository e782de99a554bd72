"""A run of several ranks under the debugger: all of them in this process, in lockstep."""
