"""PyTorch models as programs.

`exporting` gets a graph of ATen ops from `torch.export`, `modules` finds the calls of `nn.Module`
in it, `translator` writes a graph of ours for each, by the `rules` for single ATen ops, `naming`
and `sources` make the text readable.

`comparing` runs a program beside PyTorch (`evaluating`) and says which op is wrong on which side
(`judging`).
"""
