"""Importers: other libraries' models as programs. One folder a library, and nothing outside of it
imports that library.
"""
