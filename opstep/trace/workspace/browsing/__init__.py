"""What editors show of a workspace: answers, plots, kept tensors and findings, as JSON has them."""
