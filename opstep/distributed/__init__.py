"""Processes that run one program together: how they are started, find each other and agree."""
