"""Graphs made from graphs: the builder of statements, and reverse-mode gradients (`with_grad`)."""
