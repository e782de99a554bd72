"""Answers, plots, kept tensors and findings of a workspace as JSON, for editors."""
