"""Recordings of runs: the timeline for Perfetto, the SQLite workspace, and the writer thread
behind both. A run never waits for it longer than its queue is full.
"""
