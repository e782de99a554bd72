"""The version of opstep."""

__version__ = "0.1.0"
