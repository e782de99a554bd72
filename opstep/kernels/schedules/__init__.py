"""Schedules: how a graph of primitives becomes one kernel."""
