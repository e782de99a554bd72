"""Debugging at the lines of Python that a program was imported from."""
