"""Requests that are not of the protocol, but our own: ``opstep/…``. docs/lsp.md describes them."""
