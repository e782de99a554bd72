"""PyTorch models as programs.

`importing` is what users call. `exporting` gets a graph of ATen ops from `torch.export`, or `pt2`
from a file; `refusals` words what PyTorch refuses. `modules` finds the calls of `nn.Module` in the
graph, `translator` writes a graph of ours for each, by the `rules` for single ATen ops; `naming`,
`sources` and `writing` make the text readable. `assembling` puts the program together, with the
conditions on `sizes` that PyTorch exported the model for.

`comparing` runs a program beside PyTorch (`evaluating`) and says which op is wrong on which side
(`judging`).
"""
