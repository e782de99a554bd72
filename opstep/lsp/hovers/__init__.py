"""What is said about a word when the pointer rests on it, as Markdown."""
