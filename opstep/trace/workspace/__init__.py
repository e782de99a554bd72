"""The SQLite workspace: its schema, what writes it during a run, what reads it, and its pages for
Datasette.
"""
