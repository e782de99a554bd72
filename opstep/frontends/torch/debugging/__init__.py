"""PyTorch in a script that is debugged: texts of tensors, and stops where NaNs are born."""
