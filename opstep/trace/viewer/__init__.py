"""Perfetto for timelines: its query engine and its user interface, on this machine alone."""
