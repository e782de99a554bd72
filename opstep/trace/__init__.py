"""Recordings of runs: the timeline for Perfetto, the SQLite workspace, and the thread
that writes both. A run never waits for it longer than its queue is full.
"""
