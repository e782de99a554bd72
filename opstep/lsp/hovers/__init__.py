"""The Markdown shown when the pointer hovers over a word."""
