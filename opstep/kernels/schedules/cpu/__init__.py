"""Schedules for the CPU."""
