"""The textual IR: lexer, parser, types, op declarations, verifier, printer, diagnostics."""
